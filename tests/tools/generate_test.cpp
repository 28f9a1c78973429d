// What `generate` prints is valid for those who read it: bash parses and completes with it, groff renders it without
// complaint.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"
#include "tools/command.h"

namespace fsdpctl {
namespace {

std::string generated(const TempDir& scratch, const std::string& what) {
  const ProgramResult result = run_in_process({"generate", what});
  EXPECT_EQ(result.exit_code, 0);
  std::ofstream(scratch / what) << result.out;
  return scratch / what;
}

bool has_program(const std::string& name) {
  return run_process({"sh", "-c", "command -v " + name}).exit_code == 0;
}

// What bash offers for the last of `words`.
std::string completed(const std::string& script, const std::string& words, int at) {
  const std::string program = "source '" + script + "'; COMP_WORDS=(" + words + "); COMP_CWORD=" + std::to_string(at) +
                              "; _fsdpctl; echo \"${COMPREPLY[*]}\"";
  const ProcessResult result = run_process({"bash", "-c", program});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(Generate, BashCompletes) {
  TempDir scratch;
  const std::string script = generated(scratch, "bash");
  EXPECT_EQ(run_process({"bash", "-n", script}).err, "");
  EXPECT_EQ(completed(script, "fsdpctl re", 1), "reshard\n");
  EXPECT_EQ(completed(script, "fsdpctl reshard x --world", 3), "--world-size\n");
  EXPECT_EQ(completed(script, "fsdpctl convert x --to safe", 4), "safetensors\n");
  EXPECT_EQ(completed(script, "fsdpctl --json convert x --part m", 5), "model\n");
  EXPECT_EQ(completed(script, "fsdpctl generate z", 2), "zsh\n");
  EXPECT_EQ(completed(script, "fsdpctl reshard --world-size ''", 3), "\n");  // any number: nothing to offer
  EXPECT_EQ(completed(script, "fsdpctl inspect " + (scratch / "ba"), 2), (scratch / "bash") + "\n");
}

TEST(Generate, ManPageRenders) {
  TempDir scratch;
  const std::string page = generated(scratch, "man");
  if (!has_program("groff")) GTEST_SKIP() << "groff is not installed";
  const ProcessResult result = run_process({"groff", "-man", "-Tascii", "-ww", "-z", page});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  const ProcessResult text = run_process({"groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", page});
  for (const Command& command : all_commands()) {
    EXPECT_NE(text.out.find("fsdpctl " + command.name), std::string::npos) << command.name;
  }
}

TEST(Generate, ZshAndFishNameEveryCommandAndFlag) {
  for (const std::string shell : {"zsh", "fish"}) {
    const std::string text = run_in_process({"generate", shell}).out;
    for (const Command& command : all_commands()) EXPECT_NE(text.find(command.name), std::string::npos);
    EXPECT_NE(text.find("strip-wrappers"), std::string::npos);
    EXPECT_NE(text.find("torch safetensors"), std::string::npos) << shell;
    TempDir scratch;
    if (has_program(shell)) {
      EXPECT_EQ(run_process({shell, "-n", generated(scratch, shell)}).exit_code, 0);
    }
  }
}

TEST(Generate, IsTheSameEachTime) {
  EXPECT_EQ(run_in_process({"generate", "man"}).out, run_in_process({"generate", "man"}).out);
}

}  // namespace
}  // namespace fsdpctl
