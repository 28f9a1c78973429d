// fsdpctl train where fsdpctl-train is not what it should be, and what needs no LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TrainCommand : public testing::Test {
 protected:
  TrainCommand() {
    put_file(dir_ / "text.txt", "some text");
    put_file(dir_ / "c.json", R"({"model": {"config": {"model_type": "mlp"}}, "data": {"files": ["text.txt"]}, "training": {"steps": 1}})");
    fs::create_directory(dir_ / "bin");
    fs::copy_file(FSDPCTL_BINARY, dir_ / "bin/fsdpctl");
  }
  // The copy, whose neighbour is `program`; empty: none.
  ProcessResult with_program(const std::string& program, const std::vector<std::string>& arguments) {
    if (!program.empty()) {
      put_file(dir_ / "bin/fsdpctl-train", program);
      fs::permissions(dir_ / "bin/fsdpctl-train", fs::perms::owner_all);
    }
    std::vector<std::string> argv = {dir_ / "bin/fsdpctl", "train", dir_ / "c.json"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    ProcessOptions options;
    options.environment = {"PATH=/usr/bin:/bin"};
    return run_process(argv, options);
  }
  TempDir dir_;
};

TEST_F(TrainCommand, AMissingProgramIsSaidWithTheWayToGetIt) {
  const ProcessResult result = with_program("", {});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("training is not installed: fsdpctl-train is missing"));
  EXPECT_THAT(result.err, HasSubstr("try:   scripts/setup.sh libtorch"));
}

TEST_F(TrainCommand, AProgramOfAnotherVersionIsRefused) {
  const ProcessResult result = with_program("#!/bin/sh\necho fsdpctl-train 9.9.9\n", {"--nproc", "2"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("fsdpctl-train is of another version"));
  EXPECT_THAT(result.err, HasSubstr("found fsdpctl-train 9.9.9"));
}

TEST_F(TrainCommand, AProgramThatCannotStartSaysWhy) {
  const ProcessResult result = with_program("#!/bin/sh\necho libtorch_cpu.so: cannot open >&2\nexit 127\n", {});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("fsdpctl-train does not start"));
  EXPECT_THAT(result.err, HasSubstr("libtorch_cpu.so: cannot open"));
}

// It takes the same command line, and its exit code is ours.
TEST_F(TrainCommand, TheProgramTakesOver) {
  const std::string program =
      "#!/bin/sh\n[ \"$1\" = --version ] && { fsdpctl=$(dirname \"$0\")/fsdpctl; $fsdpctl --version | sed 's/fsdpctl/fsdpctl-train/'; exit; }\n"
      "echo \"$RANK: $*\"; exit 7\n";
  const ProcessResult alone = with_program(program, {"--set", "optimizer.lr=0"});
  EXPECT_EQ(alone.exit_code, 7);
  EXPECT_EQ(alone.out, ": train " + (dir_ / "c.json") + " --set optimizer.lr=0\n");
  const ProcessResult two = with_program(program, {"--nproc", "2"});
  EXPECT_EQ(two.exit_code, 7) << two.err;
  EXPECT_THAT(two.out, HasSubstr(": train " + (dir_ / "c.json") + " --nproc 2\n"));
  EXPECT_THAT(two.err, HasSubstr("a rank failed"));
}

TEST_F(TrainCommand, PrintConfigNeedsNoLibTorch) {
  const ProcessResult result = with_program("", {"--print-config", "--set", "optimizer.lr=0.5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\"lr\": 0.5"));
  put_file(dir_ / "printed.json", result.out);
  EXPECT_EQ(run_in_process({"train", dir_ / "printed.json", "--print-config"}).out, result.out);
}

TEST_F(TrainCommand, RanksOfALauncherAreNotStartedAgain) {
  ProcessOptions options;
  options.environment = {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=x", "MASTER_PORT=1"};
  const ProcessResult result = run_fsdpctl({"train", dir_ / "c.json", "--nproc", "2"}, options);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("ranks are started already"));
}

}  // namespace
}  // namespace fsdpctl
