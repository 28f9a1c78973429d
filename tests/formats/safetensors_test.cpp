// The format safetensors: reading what real libraries wrote, and what is damaged.
#include "formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "formats/all_formats.h"
#include "formats/annotations.h"
#include "tests/support/error_of.h"
#include "tests/support/process.h"
#include "tests/support/slow_reference.h"
#include "tests/support/slow_tensors.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Checkpoint open_path(const std::string& path, FindingSink& sink) { return safetensors_format()->open(Source::open(path), sink); }
Checkpoint open_path(const std::string& path) {
  FindingSink sink;
  return open_path(path, sink);
}

json read_json(const std::string& path) { return json::parse(get_file(path)); }

std::vector<std::string> fixture_roots() {
  std::vector<std::string> roots = {test_data("2.13.0")};
  if (shared_fixtures().empty()) return roots;
  for (const auto& entry : fs::directory_iterator(shared_fixtures())) roots.push_back(entry.path().string());
  return roots;
}

// ---------------------------------------------------------------------------------------------------------- reading

TEST(Safetensors, ReadsWhatTheRealLibraryWrote) {
  int read = 0;
  for (const std::string& root : fixture_roots()) {
    for (const char* name : {"hf-safetensors", "hf-dcp-w3"}) {
      if (!fs::exists(root + "/" + name)) continue;
      const json expected = read_json(root + "/" + name + "/expected.json");
      for (const auto& [relative, stored] : expected.at("stored").items()) {
        const std::string kind = stored.at("kind");
        if (kind != "hf" && kind != "safetensors") continue;
        const std::string path = root + "/" + name + "/" + relative;
        SCOPED_TRACE(path);
        EXPECT_EQ(slow_tensors(open_path(path)), stored.at("tensors"));
        ++read;
      }
    }
  }
  EXPECT_GE(read, 6);
}

TEST(Safetensors, OneFileReadsLikeItsDirectory) {
  const std::string directory = test_data("2.13.0/hf-safetensors/single");
  EXPECT_EQ(slow_tensors(open_path(directory + "/model.safetensors")), slow_tensors(open_path(directory)));
}

TEST(Safetensors, MetadataIsKept) {
  const Checkpoint c = open_path(test_data("2.13.0/hf-safetensors/dtypes"));
  EXPECT_THAT(annotations(c), testing::Contains(std::pair<std::string, std::string>("note", "caf\xC3\xA9 \xE2\x98\x83")));
}

TEST(Safetensors, TiedNameOfSaveModelIsAnAlias) {
  const Checkpoint c = open_path(test_data("2.13.0/hf-safetensors/tied"));
  ASSERT_EQ(c.aliases.size(), 1u);
  EXPECT_EQ(c.aliases[0].key, "core.tok.weight");
  EXPECT_EQ(c.tensors[c.aliases[0].tensor].key, "core.head.weight");
  for (const Annotation& annotation : annotations(c)) EXPECT_EQ(annotation.first, "format");
}

TEST(Safetensors, RecognisesContentNotEndings) {
  TempDir dir;
  const auto format = safetensors_format();
  const std::string good = get_file(test_data("2.13.0/hf-safetensors/single/model.safetensors"));
  std::ofstream(dir / "weights.dat", std::ios::binary) << good;
  EXPECT_GE(format->recognize(*Source::open(dir / "weights.dat"))->strength, 80);
  std::ofstream(dir / "spaced", std::ios::binary) << good.substr(0, 8) << "  \n{" << std::string(1000, ' ');
  EXPECT_TRUE(format->recognize(*Source::open(dir / "spaced")));
  std::ofstream(dir / "text") << "eight bytes of length they are not, and no header\n";
  EXPECT_FALSE(format->recognize(*Source::open(dir / "text")));
  std::ofstream(dir / "named.safetensors") << "PK\3\4 and so on";
  EXPECT_LT(format->recognize(*Source::open(dir / "named.safetensors"))->strength, 10);
  std::ofstream(dir / "empty");
  EXPECT_FALSE(format->recognize(*Source::open(dir / "empty")));
}

// ------------------------------------------------------------------------------------------------------ directories

// A copy of the sharded fixture to damage.
class ShardedDirectory : public testing::Test {
 protected:
  ShardedDirectory() { fs::copy(test_data("2.13.0/hf-safetensors/sharded"), path_, fs::copy_options::recursive); }

  std::vector<Finding> findings() {
    FindingSink sink(false);
    open_path(path_, sink);
    return sink.all();
  }
  Finding only_finding() {
    const std::vector<Finding> all = findings();
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? Finding() : all[0];
  }
  void edit_index(const std::function<void(json&)>& edit) {
    json index = read_json(index_);
    edit(index);
    std::ofstream(index_) << index.dump();
  }

  TempDir dir_;
  std::string path_ = dir_ / "model";
  std::string index_ = path_ + "/model.safetensors.index.json";
  const std::string shard2_ = "model-00002-of-00003.safetensors";
};

TEST_F(ShardedDirectory, IsReadInTheOrderOfTheIndex) {
  const Checkpoint c = open_path(path_);
  EXPECT_EQ(c.tensors[0].key, "anchor.weight");
  EXPECT_EQ(c.metadata_file, "model.safetensors.index.json");
  EXPECT_EQ(c.data_files.size(), 4u);
  EXPECT_TRUE(findings().empty());
}

TEST_F(ShardedDirectory, MissingShardIsDamage) {
  fs::remove(path_ + "/" + shard2_);
  const Finding f = only_finding();
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.path, shard2_);
  EXPECT_EQ(error_of([&] { open_path(path_); }).where.path, shard2_);
}

TEST_F(ShardedDirectory, BrokenShardLeavesTheOthersReadable) {
  fs::resize_file(path_ + "/" + shard2_, 20);
  FindingSink sink(false);
  const Checkpoint c = open_path(path_, sink);
  EXPECT_EQ(c.tensors.size(), 7u);
  EXPECT_EQ(sink.all().size(), 1u);
}

TEST_F(ShardedDirectory, StraySingleFileIsAWarning) {
  fs::copy(test_data("2.13.0/hf-safetensors/single/model.safetensors"), path_);
  const Finding f = only_finding();
  EXPECT_EQ(f.severity, Severity::warning);
  EXPECT_EQ(f.where.path, "model.safetensors");
  EXPECT_EQ(open_path(path_).stale_files, std::vector<std::string>{"model.safetensors"});
}

TEST_F(ShardedDirectory, TensorMissingFromItsShardIsDamage) {
  edit_index([](json& index) { index["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"; });
  const Finding f = only_finding();
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.key, "ghost");
}

TEST_F(ShardedDirectory, TensorThatTheIndexDoesNotNameIsIgnoredWithAWarning) {
  edit_index([](json& index) { index["weight_map"].erase("temp"), index["metadata"].erase("total_size"); });
  const Finding f = only_finding();
  EXPECT_EQ(f.severity, Severity::warning);
  EXPECT_EQ(f.where.key, "temp");
  EXPECT_EQ(open_path(path_).tensors.size(), 8u);
}

TEST_F(ShardedDirectory, TensorInAnotherShardIsDamage) {
  edit_index([&](json& index) { index["weight_map"]["temp"] = shard2_; });
  bool damaged = false;
  for (const Finding& f : findings()) damaged = damaged || (f.code == Exit::damaged && f.where.key == "temp");
  EXPECT_TRUE(damaged);
}

TEST_F(ShardedDirectory, WrongTotalSizeIsAWarning) {
  edit_index([](json& index) { index["metadata"]["total_size"] = 1; });
  EXPECT_EQ(only_finding().severity, Severity::warning);
}

TEST_F(ShardedDirectory, EscapingShardNamesAreRefused) {
  edit_index([](json& index) { index["weight_map"]["temp"] = "../outside.safetensors"; });
  EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::unsupported);
}

TEST_F(ShardedDirectory, IndexThatIsNoIndex) {
  for (const char* text : {"", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 1}}", "{\"weight_map\": {\"a\": {}}}", "{\"weight_map\""}) {
    std::ofstream(index_) << text;
    EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::damaged) << text;
  }
  for (const char* text : {R"({"weight_map": {"a": "x", "a": "x"}})", R"({"weight_map": {}, "weight_map": {}})"}) {
    std::ofstream(index_) << text;
    EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::unsupported) << text;
  }
}

TEST_F(ShardedDirectory, IndexMayHoldMoreThanItNeeds) {
  edit_index([](json& index) {
    index["metadata"]["total_parameters"] = 71;
    index["metadata"]["nested"] = {{"total_size", 1}, {"list", {1, {{"a", nullptr}}}}};
    index["other"] = {{"weight_map", {1, 2.5, -3}}};
    index["scalar"] = true;
  });
  EXPECT_TRUE(findings().empty());
  EXPECT_EQ(open_path(path_).tensors.size(), 9u);
}

TEST_F(ShardedDirectory, WithoutAnIndexACompleteSetIsReadWithAWarning) {
  const json with_index = slow_tensors(open_path(path_));
  fs::remove(index_);
  EXPECT_EQ(only_finding().severity, Severity::warning);
  EXPECT_EQ(slow_tensors(open_path(path_)), with_index);
  fs::remove(path_ + "/" + shard2_);
  EXPECT_EQ(error_of([&] { open_path(path_); }).where.path, shard2_);
}

TEST_F(ShardedDirectory, SeveralFilesThatAreNoSetAreRefused) {
  fs::remove(index_);
  fs::copy(test_data("2.13.0/hf-safetensors/single/model.safetensors"), path_);
  EXPECT_EQ(error_of([&] { open_path(path_); }).code, Exit::refused);
}

TEST_F(ShardedDirectory, OneShardAloneSaysSo) {
  FindingSink sink;
  EXPECT_EQ(open_path(path_ + "/" + shard2_, sink).tensors.size(), 2u);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].found, "shard 2 of 3");
}

TEST_F(ShardedDirectory, IndexAndShardsNameTheWholeDirectory) {
  const FormatList formats = all_formats();
  for (const std::string& part : {std::string("model.safetensors.index.json"), std::string("model-00001-of-00003.safetensors"), shard2_}) {
    SCOPED_TRACE(part);
    FindingSink sink;
    const Opened opened = open_checkpoint(formats, path_ + "/" + part, sink);
    EXPECT_EQ(slow_tensors(opened.checkpoint), slow_tensors(open_path(path_)));
    EXPECT_EQ(opened.checkpoint.metadata_file, "model.safetensors.index.json");
    EXPECT_TRUE(sink.all().empty());
  }
}

TEST_F(ShardedDirectory, ShardThatNoIndexNamesIsOpenedAlone) {
  const FormatList formats = all_formats();
  fs::copy(path_ + "/" + shard2_, path_ + "/other-00001-of-00002.safetensors");
  FindingSink sink;
  EXPECT_EQ(open_checkpoint(formats, path_ + "/other-00001-of-00002.safetensors", sink).checkpoint.tensors.size(), 2u);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].found, "shard 1 of 2");
}

// As diffusers keeps variants of one model.
TEST_F(ShardedDirectory, OneOfSeveralIndexesIsChosenByName) {
  const FormatList formats = all_formats();
  fs::rename(index_, path_ + "/a.safetensors.index.json");
  std::ofstream(path_ + "/a.fp16.safetensors.index.json") << R"({"weight_map": {"x": "a.fp16.safetensors"}})";
  FindingSink sink;
  EXPECT_EQ(error_of([&] { open_checkpoint(formats, path_, sink); }).code, Exit::refused);
  EXPECT_EQ(open_checkpoint(formats, path_ + "/a.safetensors.index.json", sink).checkpoint.tensors.size(), 9u);
  EXPECT_EQ(error_of([&] { open_checkpoint(formats, path_ + "/a.fp16.safetensors.index.json", sink); }).where.path, "a.fp16.safetensors");
}

TEST(Safetensors, OneRanksPiecesAreNotTakenForTensors) {
  TempDir dir;
  const std::string from = test_data("2.13.0/hf-dcp-w3/sharded_one/");
  EXPECT_EQ(error_of([&] { open_path(from + "shard-00001-model-00001-of-00001.safetensors"); }).code, Exit::refused);
  fs::copy(from + "shard-00002-model-00001-of-00001.safetensors", dir / "model.safetensors");   // the offsets tell
  EXPECT_EQ(error_of([&] { open_path(dir.path()); }).code, Exit::refused);
}

TEST(Safetensors, DamagedFixturesEndAsTheirClassSays) {
  const std::string root = shared_fixtures() + "/damaged";
  if (!fs::exists(root)) GTEST_SKIP() << kNoSharedFixtures;
  int walked = 0;
  const json manifest = read_json(root + "/manifest.json");
  for (const auto& [name, row] : manifest.items()) {
    if (!name.starts_with("st-") && !name.starts_with("hf-")) continue;
    SCOPED_TRACE(name);
    const std::string path = fs::directory_iterator(root + "/" + name)->path().string();
    ASSERT_TRUE(safetensors_format()->recognize(*Source::open(path)));
    FindingSink sink;
    ++walked;
    if (row.at("class") == "inconsistent") {
      open_path(path, sink);
      EXPECT_FALSE(sink.all().empty());
      continue;
    }
    const Finding f = error_of([&] { open_path(path, sink); });
    const bool unsafe = row.at("class") == "unsafe" && f.code == Exit::unsupported;
    EXPECT_TRUE(f.code == Exit::damaged || unsafe) << f.what;
  }
  EXPECT_EQ(walked, 9);
}

}  // namespace
}  // namespace fsdpctl
