// What --force and the other writers of files replace, and what they never do.
#include "tools/output_path.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <iterator>

#include "formats/all_formats.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

const std::string kSample = std::string(FSDPCTL_SOURCE_DIR) + "/samples/dcp-fsdp2-w4";

class OutputPath : public testing::Test {
 protected:
  bool replaceable(const std::string& name) const {
    try {
      check_replaceable(at(name), formats);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      return false;
    }
    return true;
  }
  std::string at(const std::string& name) const { return work / name; }
  TempDir work;
  FormatList formats = all_formats();
};

TEST_F(OutputPath, WhatIsNoCheckpointIsNotReplaced) {
  put_file(at("home/.bashrc"), "alias");
  put_file(at("source/src/main.cpp"), "int main() {}");
  put_file(at("notes.txt"), "notes");
  put_file(at("thesis.zip"), std::string("PK\x03\x04\x14\0\0\0\0\0", 10) + std::string(40, 'x'));
  put_file(at("cache.pickle"), "\x80\x04K\x01.");
  ASSERT_EQ(::mkfifo(at("fifo").c_str(), 0600), 0);
  for (const char* name : {"home", "source", "notes.txt", "thesis.zip", "cache.pickle", "fifo"}) {
    EXPECT_FALSE(replaceable(name)) << name;
  }
}

TEST_F(OutputPath, ACheckpointInAWorkingDirectoryDoesNotGiveTheDirectoryAway) {
  fs::copy(kSample, at("project"), fs::copy_options::recursive);
  EXPECT_TRUE(replaceable("project"));
  put_file(at("project/src/train.py"), "import torch");
  EXPECT_FALSE(replaceable("project"));
}

TEST_F(OutputPath, CheckpointsAndWhatHoldsNothingMayBeReplaced) {
  fs::create_directory(at("empty"));
  put_file(at("empty.pt"), "");
  put_file(at("model.safetensors"), std::string("\x08\0\0\0\0\0\0\0", 8) + "{}      ");
  put_file(at("interrupted/__0_0.distcp"), "half");
  for (const char* name : {"nothing", "empty", "empty.pt", "model.safetensors", "interrupted"}) {
    EXPECT_TRUE(replaceable(name)) << name;
  }
}

TEST_F(OutputPath, WhatLiesBesideACheckpointIsNotReplaced) {
  for (const std::string to : {"dcp", "hf-dcp", "safetensors"}) {
    const std::string output = at(to);
    ASSERT_EQ(run_fsdpctl({"convert", kSample, "-o", output, "--to", to, "--part", "model"}).exit_code, 0) << to;
    EXPECT_TRUE(replaceable(to)) << to;
    for (const char* name : {"notes.txt", "optimizer.pt", "tokenizer.json"}) {
      put_file(output + "/" + name, "years of work");
      EXPECT_FALSE(replaceable(to)) << to << " " << name;
      fs::remove(output + "/" + name);
    }
  }
  put_file(at("interrupted/__0_0.distcp"), "half");
  put_file(at("interrupted/notes.txt"), "notes");
  EXPECT_FALSE(replaceable("interrupted"));
}

TEST_F(OutputPath, ForceOnADirectoryOfOtherThingsIsRefusedBeforeAnythingIsRead) {
  put_file(at("home/thesis.tex"), "years of work");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"convert", kSample, "-o", at("home"), "--to", "dcp", "--force"},
           {"convert", kSample, "-o", at("home/thesis.tex"), "--to", "torch", "--force"},
           {"reshard", kSample, "-o", at("home/"), "--world-size", "2", "--force"}}) {
    const ProcessResult result = run_fsdpctl(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("error: what is there would be lost"), std::string::npos) << result.err;
    EXPECT_EQ(get_file(at("home/thesis.tex")), "years of work");
  }
  // Nor does the message about an existing output advise it.
  const ProcessResult result = run_fsdpctl({"convert", kSample, "-o", at("home"), "--to", "dcp"});
  EXPECT_NE(result.err.find("error: output exists"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("--force"), std::string::npos) << result.err;
}

TEST_F(OutputPath, ReportsAndLocksReplaceOnlyTheirOwnKind) {
  put_file(at("train.py"), "import torch");
  fs::create_directory(at("folder"));
  for (const char* name : {"train.py", "folder"}) {
    EXPECT_EQ(run_fsdpctl({"verify", kSample, "--junit", at(name)}).exit_code, 2) << name;
    EXPECT_EQ(run_fsdpctl({"verify", kSample, "--write-lock", at(name), "--force"}).exit_code, 2) << name;
  }
  EXPECT_EQ(get_file(at("train.py")), "import torch");
  EXPECT_TRUE(fs::is_directory(at("folder")));

  for (int i = 0; i < 2; ++i) EXPECT_EQ(run_fsdpctl({"verify", kSample, "--junit", at("report.xml")}).exit_code, 0);
  EXPECT_EQ(run_fsdpctl({"verify", kSample, "--write-lock", at("report.xml"), "--force"}).exit_code, 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(work.path()), {}), 3);
}

TEST_F(OutputPath, ReportsAndLocksStayOutOfTheCheckpoint) {
  fs::copy(kSample, at("ckpt"), fs::copy_options::recursive);
  const auto before = std::distance(fs::directory_iterator(at("ckpt")), {});
  for (const char* flag : {"--junit", "--write-lock"}) {
    const ProcessResult result = run_fsdpctl({"verify", at("ckpt"), flag, at("ckpt/report")});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.err.find("output lies inside the input"), std::string::npos) << result.err;
    EXPECT_EQ(run_fsdpctl({"verify", at("ckpt"), flag, at("none/report")}).exit_code, 6);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(at("ckpt")), {}), before);
}

}  // namespace
}  // namespace fsdpctl
