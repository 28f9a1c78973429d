// fsdpctl save from weights: needs no LibTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using testing::HasSubstr;

const std::string kSample = FSDPCTL_SOURCE_DIR "/samples/dcp-fsdp2-w4";

TEST(SaveWeights, AreMastersWithoutMomentsAtStep0) {
  TempDir work;
  const ProgramResult saved = run_in_process({"save", kSample, "-o", work / "first", "--world-size", "3"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_THAT(saved.out, HasSubstr("optimizer.param_groups"));   // what was made up is listed
  EXPECT_THAT(saved.out, HasSubstr("cast"));
  std::map<std::string, std::string> dtypes;
  nlohmann::json checkpoint;
  std::map<std::string, nlohmann::json> values;
  for (const nlohmann::json& line : json_lines(run_in_process({"inspect", "--json", "--tensors", "--extra", work / "first"}).out)) {
    if (line["message_type"] == "checkpoint") checkpoint = line;
    if (line["message_type"] == "tensor") dtypes[line["key"]] = line["dtype"];
    if (line["message_type"] == "value") values[line["key"]] = line["value"];
  }
  EXPECT_EQ(checkpoint["world_size"], 3);
  EXPECT_EQ(dtypes.at("model.lowp.weight"), "float32");   // bfloat16 in the source
  for (const auto& [key, dtype] : dtypes) EXPECT_THAT(key, testing::StartsWith("model."));
  EXPECT_EQ(values.at("step"), 0);
  EXPECT_EQ(values.at("samples"), 0);
  EXPECT_EQ(run_in_process({"diff", kSample, work / "first", "--name", "model.mid.*"}).exit_code, 0);
}

TEST(SaveWeights, WrongUse) {
  TempDir work;
  put_file(work / "c.json", R"({"model": {"config": {}}, "data": {"files": ["x"]}, "training": {"steps": 1}})");
  const auto code_of = [](const std::vector<std::string>& arguments) { return run_in_process(arguments).exit_code; };
  EXPECT_EQ(code_of({"save", kSample, "-o", work / "x.pt", "--to", "torch", "--world-size", "2"}), 2);
  EXPECT_EQ(code_of({"save", kSample, "-o", work / "x", "--set", "a=1"}), 2);
  EXPECT_EQ(code_of({"save", work / "c.json", "-o", work / "x", "--dry-run"}), 2);
  EXPECT_EQ(code_of({"save", work / "none", "-o", work / "x"}), 6);
}

}  // namespace
}  // namespace fsdpctl
