// kill -9 in the middle of a conversion: what is seen of the output is the old state or the new one, and the same command then
// finishes the work.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "lib/base/file.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> files(const std::string& path) {
  std::map<std::string, std::string> out;
  if (!fs::exists(path)) return out;
  if (!fs::is_directory(path)) return {{"", read_text(path, 1 << 24)}};
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) out[fs::relative(entry.path(), path)] = read_text(entry.path(), 1 << 24);
  }
  return out;
}

// Every single-step deep place is tested in tests/ckpt/publish_test.cpp with errors; here the process really dies, at some of them.
class Kill : public testing::TestWithParam<const char*> {
 protected:
  std::vector<std::string> command(bool force) const {
    const std::string to = GetParam();
    std::vector<std::string> argv = {"convert", test_data("2.13.0/dcp-fsdp2-w3/ckpt"), "-o", out, "--to", to};
    if (to == "dcp") argv.insert(argv.end(), {"--world-size", "2"});
    if (force) argv.push_back("--force");
    return argv;
  }
  void clear() const {
    for (const auto& entry : fs::directory_iterator(dir.path())) fs::remove_all(entry.path());
  }
  // A safetensors file without tensors: --force replaces only checkpoints.
  const std::string old_output = std::string("\x08\0\0\0\0\0\0\0", 8) + "{}      ";
  TempDir dir;
  std::string out = dir / (std::string("out") + (std::string(GetParam()) == "torch" ? ".pt" : ""));
};
INSTANTIATE_TEST_SUITE_P(To, Kill, testing::Values("torch", "dcp"));

TEST_P(Kill, LeavesOldOrNewAndTheSameCommandFinishes) {
  const ProcessResult undisturbed = run_fsdpctl(command(false));
  ASSERT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  const auto good = files(out);
  int kills = 0;
  for (const char* operation : {"write", "sync", "rename", "mkdir", "remove"}) {
    for (int n = 1, killed = 1; killed != 0; n += n < 4 ? 1 : n / 2) {
      const bool force = n % 2 == 0;
      clear();
      if (force) write_new_file(out, old_output);
      const auto old = files(out);
      const std::string where = fmt::format("{} {}{}", operation, n, force ? " --force" : "");
      const ProcessResult dead = run_fsdpctl(command(force), {{fmt::format("FSDPCTL_FAULT={}:{}:KILL", operation, n)}, "", 300});
      killed = dead.signal == 9;
      ASSERT_TRUE(killed != 0 || dead.exit_code == 0) << where << dead.err;
      kills += killed;
      const auto left = files(out);
      EXPECT_TRUE(left == old || left == good) << where;
      const ProcessResult again = run_fsdpctl(command(force || left == good));
      EXPECT_EQ(again.exit_code, 0) << where << again.err;
      EXPECT_EQ(files(out), good) << where;
      for (const auto& entry : fs::directory_iterator(dir.path())) {
        EXPECT_THAT(entry.path().filename().string(), testing::Not(testing::HasSubstr(".partial-"))) << where;
      }
    }
  }
  EXPECT_GE(kills, 10);
}

}  // namespace
}  // namespace fsdpctl
