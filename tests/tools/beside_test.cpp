// What lies beside a checkpoint is named, and directories may be called as Lightning calls them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

const std::string kSample = std::string(FSDPCTL_SOURCE_DIR) + "/samples/dcp-fsdp2-w4";
const std::string kWarning = "warning: files beside the checkpoint are not carried";

class Beside : public testing::Test {
 protected:
  void SetUp() override {
    fs::copy(kSample, at("last.ckpt"), fs::copy_options::recursive);
    fs::remove(at("last.ckpt/fsdpctl.manifest.json"));
  }
  std::string at(const std::string& name) const { return work / name; }
  TempDir work;
};

TEST_F(Beside, AFrameworksOwnFilesAreNamed) {
  put_file(at("last.ckpt/meta.pt"), "state of a trainer");
  put_file(at("last.ckpt/common.pt"), "state of a model");
  put_file(at("last.ckpt/tokenizer.json"), "{}");
  const std::string names = "common.pt, meta.pt, tokenizer.json";
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"inspect", at("last.ckpt")},
           {"reshard", at("last.ckpt"), "-o", at("w3"), "--world-size", "3"},
           {"convert", at("last.ckpt"), "-o", at("all.pt"), "--to", "torch"}}) {
    const ProcessResult result = run_fsdpctl(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string all = result.out + result.err;
    EXPECT_NE(all.find(kWarning), std::string::npos) << arguments[0] << "\n" << all;
    EXPECT_NE(all.find("found " + names), std::string::npos) << arguments[0] << "\n" << all;
    if (arguments[0] != "inspect") {
      EXPECT_NE(result.out.find("not carried " + names), std::string::npos) << result.out;
    }
  }
  EXPECT_NE(get_file(at("w3/fsdpctl.manifest.json")).find("meta.pt"), std::string::npos);
  const ProcessResult json = run_fsdpctl({"reshard", "--json", at("last.ckpt"), "-o", at("w2"), "--world-size", "2"});
  std::vector<std::string> changes;
  for (const auto& object : json_lines(json.out)) {
    if (object["message_type"] == "change" && object["kind"] == "not carried") changes.push_back(object["key"]);
  }
  EXPECT_EQ(changes, (std::vector<std::string>{"common.pt", "meta.pt", "tokenizer.json"}));
}

TEST_F(Beside, ItsOwnFilesHiddenAndUnfinishedOnesAreNone) {
  ASSERT_EQ(run_fsdpctl({"verify", "--write-manifest", at("last.ckpt")}).exit_code, 0);
  put_file(at("last.ckpt/.metadata.tmp"), "half");
  put_file(at("last.ckpt/x.tmp"), "half");
  put_file(at("last.ckpt/.nfs0001"), "held open");
  const ProcessResult inspected = run_fsdpctl({"inspect", at("last.ckpt")});
  EXPECT_EQ(inspected.out.find(kWarning), std::string::npos) << inspected.out;
  // A single file has a directory around it that is not its own.
  ASSERT_EQ(run_fsdpctl({"convert", kSample, "-o", at("model.pt"), "--to", "torch"}).exit_code, 0);
  put_file(at("notes.txt"), "notes");
  const ProcessResult file = run_fsdpctl({"inspect", at("model.pt")});
  EXPECT_EQ(file.out.find(kWarning), std::string::npos) << file.out;
}

TEST_F(Beside, ADirectoryMayBeNamedAsItsSourceIs) {
  for (const std::string& input : {at("last.ckpt"), at("last.ckpt/"), at("last.ckpt/.metadata")}) {
    const ProcessResult result =
        run_fsdpctl({"reshard", input, "-o", at("last-w3.ckpt"), "--world-size", "3", "--dry-run"});
    EXPECT_EQ(result.exit_code, 0) << input << result.err;
    EXPECT_EQ(run_fsdpctl({"convert", input, "-o", at("c.ckpt"), "--to", "dcp", "--dry-run"}).exit_code, 0) << input;
  }
  // Elsewhere the hint is a command that exists.
  const ProcessResult refused = run_fsdpctl({"reshard", kSample, "-o", at("w 3.pt"), "--world-size", "3"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("try:   fsdpctl convert " + kSample + " -o '" + at("w 3.pt") + "' --to torch\n"),
            std::string::npos)
      << refused.err;
}

}  // namespace
}  // namespace fsdpctl
