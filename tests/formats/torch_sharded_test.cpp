// Directories with a pytorch_model.bin.index.json: what is whole, what is not, and what names them.
#include "formats/torch_sharded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "formats/all_formats.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndex = "pytorch_model.bin.index.json";

class TorchSharded : public testing::Test {
 protected:
  TorchSharded() { fs::copy(test_data("2.13.0/hf-safetensors/bin"), dir_.path(), fs::copy_options::recursive | fs::copy_options::overwrite_existing); }

  std::string shard(int number) const { return "pytorch_model-0000" + std::to_string(number) + "-of-00003.bin"; }

  Opened open(const std::string& name = "") {
    sink_ = FindingSink(strict_);
    return open_checkpoint(formats_, name.empty() ? dir_.path() : dir_ / name, sink_);
  }

  void edit_index(const std::function<void(json& weight_map)>& edit, const std::string& name = kIndex) {
    json index = json::parse(std::ifstream(dir_ / kIndex));
    edit(index["weight_map"]);
    fs::remove(dir_ / name);
    std::ofstream(dir_ / name) << index.dump();
  }

  static std::vector<std::string> keys(const Checkpoint& checkpoint) {
    std::vector<std::string> keys;
    for (const TensorInfo& info : checkpoint.tensors) keys.emplace_back(info.key);
    std::sort(keys.begin(), keys.end());
    return keys;
  }

  std::vector<std::string> errors() const {
    std::vector<std::string> lines;
    for (const Finding& f : sink_.all()) {
      if (f.severity == Severity::error) lines.push_back(f.what + ": " + f.where.text());
    }
    return lines;
  }

  const FormatList formats_ = all_formats();
  TempDir dir_;
  bool strict_ = true;
  FindingSink sink_;
};

TEST_F(TorchSharded, IndexAndShardsNameTheWholeDirectory) {
  const std::vector<std::string> all = keys(open().checkpoint);
  EXPECT_EQ(all.size(), 9u);
  for (const std::string& part : {std::string(kIndex), shard(1), shard(3)}) {
    SCOPED_TRACE(part);
    const Opened opened = open(part);
    EXPECT_EQ(keys(opened.checkpoint), all);
    EXPECT_EQ(opened.checkpoint.metadata_file, kIndex);
    EXPECT_TRUE(sink_.all().empty());
  }
}

TEST_F(TorchSharded, ShardThatNoIndexNamesIsOpenedAlone) {
  fs::copy(dir_ / shard(2), dir_ / "other-00001-of-00002.bin");
  const Opened opened = open("other-00001-of-00002.bin");
  EXPECT_EQ(keys(opened.checkpoint), (std::vector<std::string>{"core.norm.weight", "mid.proj.weight"}));
  ASSERT_EQ(sink_.all().size(), 1u);
  EXPECT_EQ(sink_.all()[0].found, "shard 1 of 2");
}

TEST_F(TorchSharded, OneOfSeveralIndexesIsChosenByName) {
  edit_index([&](json& map) { map = {{"temp", shard(1)}, {"seen", shard(1)}, {"core.tok.weight", shard(1)}}; }, "small.bin.index.json");
  EXPECT_EQ(open("small.bin.index.json").checkpoint.tensors.size(), 3u);
  EXPECT_EQ(open().checkpoint.tensors.size(), 9u);   // the usual name
  fs::rename(dir_ / kIndex, dir_ / "large.bin.index.json");
  EXPECT_EQ(open("large.bin.index.json").checkpoint.tensors.size(), 9u);
  EXPECT_EQ(error_of([&] { open(); }).code, Exit::refused);
}

TEST_F(TorchSharded, MissingShardIsDamageAndTheOthersAreRead) {
  fs::remove(dir_ / shard(2));
  const Finding f = error_of([&] { open(); });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.path, shard(2));
  strict_ = false;
  EXPECT_EQ(open().checkpoint.tensors.size(), 7u);
  EXPECT_EQ(errors().size(), 1u);
}

TEST_F(TorchSharded, BrokenShardIsDamageAndTheOthersAreRead) {
  fs::resize_file(dir_ / shard(3), 1000);
  EXPECT_EQ(error_of([&] { open(); }).code, Exit::damaged);
  strict_ = false;
  EXPECT_EQ(open().checkpoint.tensors.size(), 5u);
  EXPECT_EQ(errors().size(), 1u);
}

TEST_F(TorchSharded, TensorInAnotherShardThanTheIndexSays) {
  edit_index([&](json& map) { map["seen"] = shard(2); });
  const Finding f = error_of([&] { open(); });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.path, shard(1));
  EXPECT_EQ(f.where.key, "seen");
  EXPECT_EQ(f.expected, shard(2));
  strict_ = false;
  EXPECT_EQ(open().checkpoint.tensors.size(), 6u);
  EXPECT_THAT(errors(), testing::ElementsAre("tensor is in another shard than the index says: " + shard(1) + ", seen",
                                             "tensor is missing from the shard that the index names: " + shard(2) + ", seen"));
}

TEST_F(TorchSharded, TwoShardsWithTensorsOfOneName) {
  fs::remove(dir_ / shard(2));
  fs::copy(dir_ / shard(1), dir_ / shard(2));
  // The index names neither of the two, or it would decide.
  edit_index([&](json& map) {
    for (const char* name : {"core.tok.weight", "seen", "temp", "core.norm.weight", "mid.proj.weight"}) map.erase(name);
    map["a"] = shard(1);
    map["b"] = shard(2);
  });
  EXPECT_EQ(error_of([&] { open(); }).what, "two shards have a tensor of one name");
  strict_ = false;
  EXPECT_EQ(open().checkpoint.tensors.size(), 7u);
  EXPECT_THAT(errors(), testing::Contains(testing::StartsWith("two shards have a tensor of one name: " + shard(2))));
}

TEST_F(TorchSharded, TensorThatNoShardHas) {
  edit_index([&](json& map) { map["lost"] = shard(1); });
  const Finding f = error_of([&] { open(); });
  EXPECT_EQ(f.what, "tensor is missing from the shard that the index names");
  EXPECT_EQ(f.where.key, "lost");
}

TEST_F(TorchSharded, TensorThatTheIndexDoesNotNameIsReadWithAWarning) {
  edit_index([&](json& map) { map.erase("temp"); });
  EXPECT_EQ(open().checkpoint.tensors.size(), 9u);
  ASSERT_EQ(sink_.all().size(), 1u);
  EXPECT_EQ(sink_.all()[0].where.key, "temp");
}

TEST_F(TorchSharded, IndexMayNotLeaveTheDirectory) {
  edit_index([&](json& map) { map = {{"seen", "../x.bin"}}; });
  EXPECT_EQ(error_of([&] { open(); }).code, Exit::unsupported);
}

}  // namespace
}  // namespace fsdpctl
