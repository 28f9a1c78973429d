// One conversion done by several processes that share nothing but the file system.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <thread>

#include "lib/base/file.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::map<std::string, std::string> files(const std::string& path) {
  std::map<std::string, std::string> out;
  if (!fs::exists(path)) return out;
  if (!fs::is_directory(path)) return {{"", read_text(path, 1 << 28)}};
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) out[fs::relative(entry.path(), path)] = read_text(entry.path(), 1 << 28);
  }
  return out;
}

class Workers : public testing::TestWithParam<const char*> {
 protected:
  // 24 MiB in six tensors: several jobs.
  void SetUp() override {
    std::string header = "{", data(6 << 22, '\0');
    for (int t = 0; t < 6; ++t) {
      header += fmt::format(R"({}"layers.{}.weight":{{"dtype":"F32","shape":[1024,1024],"data_offsets":[{},{}]}})", t == 0 ? "" : ",", t,
                            t << 22, (t + 1) << 22);
    }
    header += "}";
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 2654435761u >> 13);
    std::string text(8, '\0');
    for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
    write_new_file(source, text + header + data);
  }
  std::vector<std::string> command(const std::string& output, const std::string& worker = "") const {
    const std::string to = GetParam();
    std::vector<std::string> argv = {"convert", source, "-o", output, "--to", to};
    if (to == "dcp") argv.insert(argv.end(), {"--world-size", "3"});
    if (!worker.empty()) argv.insert(argv.end(), {"--worker", worker});
    return argv;
  }
  bool partial_left() const {
    for (const auto& entry : fs::directory_iterator(dir.path())) {
      if (entry.path().filename().string().find(".partial-") != std::string::npos) return true;
    }
    return false;
  }
  // Whether OUT is what one process alone writes under the same name (which torch files contain).
  bool as_if_alone() const {
    fs::create_directory(dir / "alone");
    const std::string alone = dir / "alone/" + base_name(out);
    const ProcessResult result = run_fsdpctl(command(alone));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return files(out) == files(alone);
  }

  TempDir dir;
  std::string source = dir / "source.safetensors", out = dir / (std::string(GetParam()) == "torch" ? "out.pt" : "out");
};
INSTANTIATE_TEST_SUITE_P(To, Workers, testing::Values("torch", "dcp"));

TEST_P(Workers, OneAfterTheOtherAndTheLastPublishes) {
  for (const char* worker : {"2/3", "0/3"}) {
    const ProcessResult result = run_fsdpctl(command(out, worker));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("the last worker to finish publishes"));
    EXPECT_FALSE(fs::exists(out));
  }
  const ProcessResult last = run_fsdpctl(command(out, "1/3"));
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("read back and equal to the source"));
  EXPECT_THAT(last.out, HasSubstr("resumed     16"));   // MiB, by the two others
  EXPECT_TRUE(as_if_alone());
  EXPECT_FALSE(partial_left());
}

TEST_P(Workers, SideBySide) {
  std::vector<ProcessResult> results(5);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < results.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = run_fsdpctl(command(out, fmt::format("{}/{}", i, results.size()))); });
    }
  }
  int published = 0;
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    published += result.out.find("equal to the source") != std::string::npos;
  }
  EXPECT_EQ(published, 1);
  EXPECT_TRUE(as_if_alone());
  EXPECT_FALSE(partial_left());
}

TEST_P(Workers, AShareThatWasKilledIsDoneAgain) {
  EXPECT_EQ(run_fsdpctl(command(out, "1/2")).exit_code, 0);
  const ProcessResult dead = run_fsdpctl(command(out, "0/2"), {{"FSDPCTL_FAULT=write:3:KILL"}, "", 300});
  EXPECT_EQ(dead.signal, 9);
  EXPECT_FALSE(fs::exists(out));
  const ProcessResult again = run_fsdpctl(command(out, "0/2"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(as_if_alone());
}

TEST_P(Workers, OneProcessAloneContinuesWhatWorkersBegan) {
  EXPECT_EQ(run_fsdpctl(command(out, "1/2")).exit_code, 0);
  const ProcessResult alone = run_fsdpctl(command(out));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("resumed"));
  EXPECT_TRUE(as_if_alone());
  EXPECT_FALSE(partial_left());
}

TEST_P(Workers, AnotherNumberOfWorkersContinuesToo) {
  EXPECT_EQ(run_fsdpctl(command(out, "1/2")).exit_code, 0);
  EXPECT_EQ(run_fsdpctl(command(out, "0/3")).exit_code, 0);
  const ProcessResult last = run_fsdpctl(command(out, "1/3"));
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_TRUE(as_if_alone());
}

TEST_P(Workers, ALauncherSaysWhichShare) {
  const auto as = [&](std::vector<std::string> environment) {
    ProcessOptions options;
    options.environment = std::move(environment);
    return run_fsdpctl(command(out, "auto"), options);
  };
  const ProcessResult first = as({"RANK=1", "WORLD_SIZE=3"});   // torchrun's
  EXPECT_THAT(first.out, HasSubstr("share 1 of 3")) << first.err;
  const ProcessResult second = as({"SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=3"});
  EXPECT_THAT(second.out, HasSubstr("share 0 of 3")) << second.err;
  const ProcessResult last = as({"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_LOCAL_RANK=2"});
  EXPECT_EQ(last.exit_code, 0) << last.err;
  EXPECT_TRUE(as_if_alone());

  const ProcessResult nobody = as({});
  EXPECT_EQ(nobody.exit_code, 2);
  EXPECT_THAT(nobody.err, AllOf(HasSubstr("--worker auto"), HasSubstr("try:   --worker I/N")));
  const ProcessResult half = as({"RANK=1"});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, HasSubstr("WORLD_SIZE"));
}

TEST_P(Workers, OfDifferentCommandsAreTold) {
  const ProcessResult first = run_fsdpctl(command(out, "0/2"));
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_THAT(first.out, HasSubstr(out + ".partial-"));
  EXPECT_EQ(first.err, "");
  std::vector<std::string> other = command(out, "1/2");
  other.insert(other.end(), {"--dtype", "float64"});
  const ProcessResult second = run_fsdpctl(other);
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.out, HasSubstr("the last worker to finish publishes"));
  EXPECT_THAT(second.err, HasSubstr("give all workers the same source and flags"));
  EXPECT_FALSE(fs::exists(out));
}

TEST_P(Workers, BadSharesAreRefused) {
  for (const char* worker : {"", "1", "3/3", "-1/3", "0/0", "1/2/3", "a/b", "0/99999999999999999999", " 0/1"}) {
    const ProcessResult result = run_fsdpctl({"convert", source, "-o", out, "--to", GetParam(), "--worker", worker});
    EXPECT_EQ(result.exit_code, 2) << worker;
    EXPECT_THAT(result.err, HasSubstr("--worker")) << worker;
  }
  EXPECT_FALSE(partial_left());
}

}  // namespace
}  // namespace fsdpctl
