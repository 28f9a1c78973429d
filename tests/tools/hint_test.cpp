// Hints are commands: the user's own, and to be pasted whatever the paths are called.
#include <gtest/gtest.h>

#include <filesystem>

#include "lib/base/shell_quoted.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

const std::string kSample = std::string(FSDPCTL_SOURCE_DIR) + "/samples/dcp-fsdp2-w4";

void expect_text(const ProcessResult& result, int code, const std::string& text) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_NE((result.out + result.err).find(text), std::string::npos) << text << "\n" << result.out << result.err;
}

TEST(Hint, QuotingIsUndone) {
  for (const char* name : {"plain", "two words", "it's", "''", "$HOME", ""}) {
    EXPECT_EQ(shell_unquoted(shell_quoted(name)), name);
  }
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
}

TEST(Hint, IsTheUsersOwnCommandWithThePathReplaced) {
  const TempDir work;
  fs::create_directory(work / "two words");
  ASSERT_EQ(run_fsdpctl({"convert", kSample, "-o", work / "two words/x.pt", "--to", "torch"}).exit_code, 0);
  const std::string directory = work / "two words", file = "'" + directory + "/x.pt'";
  expect_text(run_fsdpctl({"convert", directory, "-o", work / "o.pt", "--to", "torch"}), 4,
              "try:   fsdpctl convert " + file + " -o " + (work / "o.pt") + " --to torch\n");
  expect_text(run_fsdpctl({"verify", "--data", directory + "/"}), 4, "try:   fsdpctl verify --data " + file + "\n");
  expect_text(run_fsdpctl({"inspect", directory}), 4, "try:   fsdpctl inspect " + file + "\n");
}

TEST(Hint, OurOwnFilesSayWhatReadsThem) {
  const TempDir work;
  ASSERT_EQ(run_fsdpctl({"convert", kSample, "-o", work / "x.pt", "--to", "torch"}).exit_code, 0);
  ASSERT_EQ(run_fsdpctl({"verify", work / "x.pt", "--write-lock", work / "m.lock"}).exit_code, 0);
  expect_text(run_fsdpctl({"inspect", work / "x.pt.fsdpctl.json"}), 5,
              "try:   fsdpctl verify --data " + (work / "x.pt") + "\n");
  expect_text(run_fsdpctl({"inspect", work / "m.lock"}), 5, "fsdpctl verify --against " + (work / "m.lock"));
  const std::string lock = get_file(work / "m.lock");
  put_file(work / "short.lock", lock.substr(0, lock.size() / 2));
  put_file(work / "other.lock", "{\"fsdpctl_lock\": 1, \"rows\": 3}");
  for (const char* name : {"short.lock", "other.lock"}) {
    const ProcessResult result = run_fsdpctl({"verify", kSample, "--against", work / name});
    expect_text(result, 2, "lock file cannot be read");
    EXPECT_EQ(result.err.find("json.exception"), std::string::npos) << result.err;
  }
}

TEST(Hint, WhatIsAdvisedForKeysOfOneTextWorks) {
  const TempDir work;
  const std::string state = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/equal-keys/state.pt";
  for (const std::string format : {"torch", "safetensors", "dcp", "hdf5"}) {
    const std::string out = work / format;
    expect_text(run_fsdpctl({"convert", state, "-o", out, "--to", format}), 4, "fsdpctl convert with --drop a.b leaves both out");
    expect_text(run_fsdpctl({"convert", state, "-o", out, "--to", format, "--drop", "a.b"}), 0, "dropped     a.b");
    const ProcessResult left = run_fsdpctl({"inspect", "--tensors", out});
    EXPECT_NE(left.out.find("c "), std::string::npos) << left.out;
    EXPECT_EQ(left.out.find("a.b"), std::string::npos) << left.out;
  }
}

TEST(Hint, SealingDoesNotSayThatNothingIsRecorded) {
  const TempDir work;
  fs::copy(kSample, work / "c", fs::copy_options::recursive);
  const ProcessResult sealed = run_fsdpctl({"verify", "--write-manifest", work / "c"});
  expect_text(sealed, 0, ": sealed, ");
  EXPECT_EQ(sealed.out.find("cannot be known"), std::string::npos) << sealed.out;
}

}  // namespace
}  // namespace fsdpctl
