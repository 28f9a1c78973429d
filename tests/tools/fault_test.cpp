// A disk that fails: the n-th read, open, write ... of every command, for all n. No failure may look like success, or like damage of
// the checkpoint, and nothing is published.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "lib/base/file.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

struct Source {
  const char* name;
  const char* path;    // below tests/data/2.13.0
};

void PrintTo(const Source& source, std::ostream* out) { *out << source.name; }

class DiskFaults : public testing::TestWithParam<Source> {
 protected:
  DiskFaults() : source(test_data("2.13.0/") + GetParam().path) {
    if (std::string(GetParam().name) == "hdf5") {
      source = dir / "source.h5";
      EXPECT_EQ(run_in_process({"convert", test_data("2.13.0/dcp-fsdp2-w3/ckpt"), "-o", source, "--to", "hdf5"}).exit_code, 0);
    }
    undisturbed = run_in_process(convert()).exit_code;
    remove_output();
  }
  ~DiskFaults() override { set_fault_hook(nullptr); }

  std::vector<std::string> convert() const { return {"convert", source, "-o", out, "--to", "torch", "--threads", "1"}; }
  void remove_output() const {
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      if (entry.path() != source) fs::remove_all(entry.path());
    }
  }

  // Runs with the n-th `operation` failing, and with `lasting` every later one; false where there are fewer.
  bool run(const std::vector<std::string>& arguments, std::string_view operation, int n, bool lasting, ProgramResult& result) {
    std::atomic<int> calls = 0;
    set_fault_hook([&](std::string_view called, const std::string&) {
      const int call = called == operation ? ++calls : 0;
      return call == n || (lasting && call > n) ? EIO : 0;
    });
    result = run_in_process(arguments);
    set_fault_hook(nullptr);
    return calls >= n;
  }

  TempDir dir{TempDir::Place::memory};
  std::string source, out = dir / "out.pt";
  int undisturbed = -1;
};

INSTANTIATE_TEST_SUITE_P(Sources, DiskFaults,
                         testing::Values(Source{"dcp", "dcp-fsdp2-w3/ckpt"}, Source{"zstd", "dcp-zstd-w2/ckpt"},
                                         Source{"torch", "plain/checkpoint.pt"}, Source{"legacy", "odd-torch/dtypes_legacy.pt"},
                                         Source{"safetensors", "hf-safetensors/sharded"}, Source{"hf_dcp", "hf-dcp-w3/sharded"},
                                         Source{"hdf5", ""}),
                         [](const testing::TestParamInfo<Source>& tested) { return std::string(tested.param.name); });

TEST_P(DiskFaults, WhatCannotBeReadIsNeitherDamagedNorWell) {
  const std::vector<std::vector<std::string>> commands = {
      {"inspect", source, "--tensors", "--extra"}, {"verify", source, "--data", "--threads", "1"}, {"diff", source, source, "--data"}};
  for (const auto& command : commands) {
    for (const std::string_view operation : {"open", "read", "list"}) {
      ProgramResult result;
      for (const bool lasting : {false, true}) {
        for (int n = 1; run(command, operation, n, lasting, result); n += n < 30 ? 1 : n / 3) {
          const std::string where = fmt::format("{}: {} {}{}\n{}{}", command[0], operation, n, lasting ? " and later" : "", result.out, result.err);
          // What failed once may be read again, in smaller steps.
          EXPECT_TRUE(result.exit_code == 6 || (result.exit_code == 0 && !lasting && command[0] == "verify")) << where;
          if (result.exit_code == 6) {
            EXPECT_THAT(result.out + result.err, testing::HasSubstr("Input/output error")) << where;
            EXPECT_THAT(result.out, testing::Not(testing::HasSubstr("damaged"))) << where;
          }
        }
      }
    }
  }
}

TEST_P(DiskFaults, AConversionPublishesAllOrNothing) {
  ASSERT_EQ(undisturbed, 0);
  for (const std::string_view operation : {"open", "read", "list", "write", "sync", "resize", "rename", "mkdir", "remove", "lock"}) {
    ProgramResult result;
    for (int n = 1; run(convert(), operation, n, false, result); n += n < 30 ? 1 : n / 3) {
      const std::string where = fmt::format("{} {}\n{}{}", operation, n, result.out, result.err);
      EXPECT_TRUE(result.exit_code == 6 || result.exit_code == 0) << where;
      if (result.exit_code == 6) {
        EXPECT_THAT(result.err, testing::HasSubstr("Input/output error")) << where;
      }
      // After the rename the output is there, whatever could not be tidied up.
      EXPECT_TRUE(fs::exists(out) || result.exit_code != 0) << where;
      if (fs::exists(out)) {
        EXPECT_EQ(run_in_process({"diff", source, out}).exit_code, 0) << where;
      } else {
        EXPECT_EQ(run_in_process(convert()).exit_code, 0) << where << "the next run fails";
      }
      remove_output();
    }
  }
}

}  // namespace
}  // namespace fsdpctl
