// What the program prints where, and what it does where that is not possible.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/session.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

TEST_F(Session, SeveralCheckpointsAreAllTriedAndTheFirstFailureIsTheExitCode) {
  const ProcessResult result = expect(6, {"inspect", at("none"), kSample, at("nothing")});
  EXPECT_NE(result.out.find("dcp checkpoint"), std::string::npos);
  EXPECT_NE(result.err.find("none"), std::string::npos);
  EXPECT_NE(result.err.find("nothing"), std::string::npos);
  const ProcessResult machine = expect(6, {"verify", "--json", at("none"), kSample});
  EXPECT_EQ(only(machine.out, "summary")["failed"], 1);
}

TEST_F(Session, ABrokenPipeIsAQuietSuccess) {
  const std::string command =
      std::string(FSDPCTL_BINARY) + " inspect --json --tensors --pieces --extra '" + kSample + "'";
  const ProcessResult result = run_process({"bash", "-c", "set -o pipefail; " + command + " | true"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(Session, ClosedStandardStreamsAreNeverWrittenIntoFiles) {
  // A file that is opened while descriptor 0, 1 or 2 is free would get that number, and our words with it.
  const auto convert = [&](const std::string& input, const std::string& output, const std::string& more) {
    return run_process(
               {"bash", "-c",
                std::string(FSDPCTL_BINARY) + " convert '" + input + "' -o '" + at(output) + "' --to torch " + more})
        .exit_code;
  };
  EXPECT_EQ(convert(kSample, "all.pt", ""), 0);
  EXPECT_EQ(convert(at("all.pt"), "quiet.pt", "<&- 2>&-"), 0);  // nothing to say there
  // The first files are the source, now at 0, and the lock of the output, now at 2.
  EXPECT_EQ(convert(at("all.pt"), "progress.pt", "--progress always <&- 2>&-"), 6);
  EXPECT_FALSE(fs::exists(at("progress.pt")));
  EXPECT_EQ(convert(at("all.pt"), "silent.pt", "<&- >&-"), 6);  // written, but it could not be said
  expect(0, {"diff", "--data", kSample, at("quiet.pt")});
  expect(0, {"diff", "--data", kSample, at("silent.pt")});
}

TEST_F(Session, VerboseSaysWhatWasOpenedAndHowLongItTook) {
  const std::vector<std::string> convert = {"convert", kSample, "--to", "torch", "-o"};
  const auto run = [&](const std::string& flag) {
    std::vector<std::string> arguments = convert;
    arguments.insert(arguments.end(), {at("out" + flag), flag});
    return expect(0, arguments).err;
  };
  const std::string verbose = run("-v"), more = run("-vv");
  EXPECT_NE(verbose.find("dcp, directory with .metadata; 28 tensors"), std::string::npos) << verbose;
  EXPECT_NE(verbose.find("fsdpctl: convert: "), std::string::npos) << verbose;
  EXPECT_EQ(verbose.find("of buffers"), std::string::npos) << verbose;
  EXPECT_NE(more.find("96.0 MiB of buffers"), std::string::npos) << more;
  EXPECT_EQ(run("-q"), "");
}

TEST_F(Session, AFullDiskUnderStdoutIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ProcessResult result =
      run_process({"bash", "-c", std::string(FSDPCTL_BINARY) + " inspect '" + kSample + "' > /dev/full"});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_NE(result.err.find("output could not be written"), std::string::npos);
}

TEST_F(Session, ATemporaryDirectoryThatIsNotThereIsSaid) {
  // Encoded items are decoded into a temporary file.
  const std::string zstd = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/dcp-zstd-w2/ckpt";
  const ProcessResult result = expect(6, {"verify", "--data", zstd}, {{"TMPDIR=" + at("none")}, ""});
  EXPECT_NE((result.out + result.err).find("error: cannot create temporary file"), std::string::npos)
      << result.out << result.err;
}

}  // namespace
}  // namespace fsdpctl
