// The format safetensors: what real libraries read of what it writes, and the tree beside the tensors.
#include "formats/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/safetensors_header.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/renumber.h"
#include "tests/support/error_of.h"
#include "tests/support/made_checkpoint.h"
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

TargetPlacement one_rank(const Checkpoint& checkpoint) { return {1, std::vector<TargetPlacement::Row>(checkpoint.tensors.size())}; }

// Lays the checkpoint out below `directory`, as a single file `name` or, where that is empty, as a directory.
void write(const Checkpoint& checkpoint, const std::string& directory, const std::string& name, uint64_t max_shard_bytes = 5'000'000'000) {
  const TargetPlacement placement = one_rank(checkpoint);
  Target target;
  target.placement = &placement;
  target.file_name = name;
  target.directory = name.empty();
  target.max_shard_bytes = max_shard_bytes;
  FindingSink sink;
  const auto format = safetensors_format();
  format->can_carry(checkpoint, target, sink);
  slow_write(checkpoint, format->lay_out(checkpoint, target), directory);
}

json real_read(std::vector<std::string> files) {
  files.insert(files.begin(), {torch_python(), std::string(FSDPCTL_SOURCE_DIR) + "/tests/support/describe_tensors.py", "safetensors"});
  const ProcessResult r = run_process(files);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r.exit_code == 0 ? json::parse(r.out) : json();
}

std::vector<std::string> names_in_header(const std::string& path) {
  const std::string file = get_file(path);
  Arena arena;
  FindingSink sink;
  const SafetensorsHeader header = read_safetensors_header(
      [&](uint64_t offset, std::span<std::byte> out) { std::copy_n(reinterpret_cast<const std::byte*>(file.data()) + offset, out.size(), out.data()); },
      file.size(), path, arena, sink);
  EXPECT_EQ(header.data_offset % 64, 0u);
  std::vector<std::string> names;
  for (const SafetensorsEntry& e : header.entries) names.emplace_back(e.name);
  return names;
}

TEST(SafetensorsWriting, EveryDtypeIsReadByTheRealLibrary) {
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
  TempDir dir;
  const Checkpoint source = open_path(test_data("2.13.0/hf-safetensors/dtypes/all.safetensors"));
  write(source, dir.path(), "out.safetensors");
  const json real = real_read({dir / "out.safetensors"});
  EXPECT_EQ(real.at("tensors"), slow_tensors(source));
  EXPECT_EQ(real.at("metadata"), (json{{"format", "pt"}, {"note", "caf\u00e9 \u2603"}}));
}

TEST(SafetensorsWriting, DataIsInTheOrderOfTheReferenceAndNamesInTheOrderOfTheTree) {
  TempDir dir;
  const Checkpoint sharded = open_path(test_data("2.13.0/hf-safetensors/sharded"));   // the same tensors as `single`
  write(sharded, dir.path(), "ours.safetensors");
  auto data_of = [](const std::string& file) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    return file.substr(8 + length);
  };
  EXPECT_EQ(data_of(get_file(dir / "ours.safetensors")), data_of(get_file(test_data("2.13.0/hf-safetensors/single/model.safetensors"))));
  std::vector<std::string> keys;
  for (const TensorInfo& info : sharded.tensors) keys.emplace_back(info.key);
  EXPECT_EQ(names_in_header(dir / "ours.safetensors"), keys);
}

TEST(SafetensorsWriting, WritingTwiceGivesTheSameBytes) {
  TempDir dir;
  const Checkpoint source = open_path(test_data("2.13.0/hf-safetensors/tied"));
  write(source, dir.path(), "a.safetensors");
  write(open_path(dir / "a.safetensors"), dir.path(), "b.safetensors");
  EXPECT_EQ(get_file(dir / "a.safetensors"), get_file(dir / "b.safetensors"));
}

TEST(SafetensorsWriting, ShardsAndIndexAreWhatHuggingFaceWrites) {
  TempDir dir;
  const Checkpoint source = open_path(test_data("2.13.0/hf-safetensors/sharded"));
  write(source, dir.path(), "", 300);
  const json ours = read_json(dir / "model.safetensors.index.json");
  EXPECT_EQ(ours.at("metadata").at("total_size"), 574);
  EXPECT_THAT(get_file(dir / "model.safetensors.index.json"), testing::StartsWith("{\n  \"metadata\": {\n    \"total_size\": 574"));
  FindingSink sink;
  EXPECT_EQ(slow_tensors(open_path(dir.path(), sink)), slow_tensors(source));
  EXPECT_TRUE(sink.all().empty());
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  EXPECT_EQ(files.size(), 3u);
  EXPECT_EQ(real_read(files).at("tensors"), slow_tensors(source));
}

TEST(SafetensorsWriting, OneShardNeedsNoIndex) {
  TempDir dir;
  write(open_path(test_data("2.13.0/hf-safetensors/sharded")), dir.path(), "");
  EXPECT_TRUE(fs::exists(dir / "model.safetensors"));
  EXPECT_FALSE(fs::exists(dir / "model.safetensors.index.json"));
}

// Sizes of tensors, in order, to the shards that they are cut into.
std::vector<std::vector<int64_t>> packed(const std::vector<int64_t>& sizes, uint64_t limit) {
  MadeCheckpoint made;
  MadeEntries entries;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = fmt::format("t{:03}", i);
    entries.emplace_back(name, made.tensor(name, {sizes[i]}, DType::uint8));
  }
  made.checkpoint.tree = dict(entries);
  const TargetPlacement placement = one_rank(made.checkpoint);
  Target target;
  target.placement = &placement;
  target.directory = true;
  target.max_shard_bytes = limit;
  std::vector<std::vector<int64_t>> shards;
  const auto format = safetensors_format();
  for (const auto& layout : format->lay_out(made.checkpoint, target)) {
    if (!layout->path().ends_with(".safetensors")) continue;
    shards.emplace_back();
    for (uint64_t item = 1; item < layout->item_count(); ++item) {
      SegmentList list;
      layout->segments(item, list);
      shards.back().push_back(static_cast<int64_t>(list.segments.at(0).length));
    }
  }
  return shards;
}

TEST(SafetensorsWriting, PacksAsHuggingFaceDoes) {
  using Shards = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(packed({6, 6, 2, 6, 2, 2}, 10), (Shards{{6}, {6, 2}, {6, 2, 2}}));
  EXPECT_EQ(packed({4, 20, 4, 4}, 10), (Shards{{20}, {4, 4}, {4}}));   // above the limit: at once, and alone
  EXPECT_EQ(packed({5, 5, 5}, 10), (Shards{{5, 5}, {5}}));
  EXPECT_EQ(packed({20}, 10), (Shards{{20}}));
  EXPECT_EQ(packed({}, 10), (Shards{{}}));
}

// ------------------------------------------------------------------------------------------------------------ names

// A real file's tensors under a tree of our own.
class Trees : public testing::Test {
 protected:
  Trees() : checkpoint_(open_path(test_data("2.13.0/hf-safetensors/single"))) {}

  Value t(std::string_view key) const { return Value::tensor({*checkpoint_.find(key), false, false}); }

  // The other tensors, so that none is missing from the tree.
  Value rest(std::vector<std::string> without) const {
    MadeEntries entries;
    for (TensorIndex i = 0; i < checkpoint_.tensors.size(); ++i) {
      const std::string key(open_.tensors[i].key);
      if (std::find(without.begin(), without.end(), key) == without.end()) entries.emplace_back(key, Value::tensor({i, false, false}));
    }
    return dict(entries);
  }

  void set_tree(Value tree) {
    checkpoint_.tree = std::move(tree);
    FindingSink sink;
    checkpoint_.finish(sink);
  }

  // Writes, reads, and expects the same tree over the same tensors.
  Checkpoint round_trip(const std::string& name = "out.safetensors", uint64_t limit = 5'000'000'000) {
    write(checkpoint_, dir_.path(), name, limit);
    FindingSink sink;
    Checkpoint back = open_path(name.empty() ? dir_.path() : dir_ / name, sink);
    EXPECT_TRUE(sink.all().empty());
    EXPECT_EQ(slow_tensors(back), slow_tensors(checkpoint_));
    std::vector<TensorIndex> number;
    for (const TensorInfo& info : checkpoint_.tensors) number.push_back(back.find(info.key).value_or(0));
    EXPECT_TRUE(equal(renumbered(checkpoint_.tree, number), back.tree))
        << value_to_json(checkpoint_.tree, JsonForm::stored) << "\n" << value_to_json(back.tree, JsonForm::stored);
    return back;
  }

  std::vector<std::string> written_names() {
    std::vector<std::string> names = names_in_header(dir_ / "out.safetensors");
    std::sort(names.begin(), names.end());
    return names;
  }
  bool tree_was_written() { return get_file(dir_ / "out.safetensors").find("fsdpctl.tree") != std::string::npos; }

  TempDir dir_;
  Checkpoint checkpoint_;
  const Checkpoint open_ = checkpoint_;   // as it was opened
};

TEST_F(Trees, FlatModelNeedsNoTree) {
  round_trip();
  EXPECT_FALSE(tree_was_written());
}

TEST_F(Trees, NestedModelHasPlainNames) {
  set_tree(dict({{"model", rest({})}}));
  round_trip();
  EXPECT_TRUE(tree_was_written());
  std::vector<std::string> keys;
  for (const TensorInfo& info : open_.tensors) keys.emplace_back(info.key);
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(written_names(), keys);
}

TEST_F(Trees, OrderedDictWithAttributesAndParametersComeBack) {
  Value ordered = Value::mapping(Kind::ordered_dict, rest({"temp"}).entries());
  ordered.mutable_entries().push_back({Value::string("temp"), Value::tensor({*open_.find("temp"), true, true})});
  ordered.mutable_node<MappingNode>().attributes = dict({{"_metadata", dict({{"", dict({{"version", Value::integer(1)}})}})}});
  set_tree(ordered);
  round_trip();
  EXPECT_TRUE(tree_was_written());
}

TEST_F(Trees, OptimizerAndExtrasTravelUnderTheirPaths) {
  const Value state = dict({{"mid.proj.weight", dict({{"step", t("temp")}, {"exp_avg", t("mid.proj.weight")}})}});
  const Value group = dict({{"lr", Value::real(1e-3)}, {"betas", Value::sequence(Kind::tuple, {Value::real(0.9), Value::real(0.999)})},
                            {"params", names({"mid.proj.weight"})}, {"maximize", Value::boolean(false)}, {"foreach", Value()}});
  set_tree(dict({{"model", rest({"mid.proj.weight", "temp"})},
                 {"optim", dict({{"state", state}, {"param_groups", list({group})}})},
                 {"epoch", Value::integer(3)},
                 {"big", Value::big_integer("123456789012345678901234567890")},
                 {"note", Value::string("caf\xC3\xA9")},
                 {"history", list({Value::integer(1), dict({{"a", Value::bytes(std::string_view("\0\xFF", 2))}})})}}));
  round_trip();
  EXPECT_THAT(written_names(), testing::IsSupersetOf({"model.anchor.weight", "optim.state.mid.proj.weight.exp_avg", "optim.state.mid.proj.weight.step"}));
}

TEST_F(Trees, ShardedDirectoriesKeepTheTreeInTheIndex) {
  set_tree(dict({{"model", rest({})}, {"step", Value::integer(7)}}));
  round_trip("", 300);
  EXPECT_TRUE(read_json(dir_ / "model.safetensors.index.json").at("metadata").contains("fsdpctl.tree"));
}

TEST_F(Trees, TiedNamesAreStoredOnceUnderTheFirstName) {
  Value tied = rest({});
  tied.mutable_entries().insert(tied.mutable_entries().begin(), {Value::string("tied.weight"), t("core.tok.weight")});
  set_tree(tied);
  const Checkpoint back = round_trip();
  EXPECT_EQ(back.aliases.size(), 1u);
  EXPECT_EQ(written_names().size(), 9u);
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
  EXPECT_EQ(real_read({dir_ / "out.safetensors"}).at("metadata").at("tied.weight"), "core.tok.weight");
}

TEST_F(Trees, TreeOfOtherTensorsIsIgnoredWithAWarning) {
  set_tree(dict({{"model", rest({})}}));
  write(checkpoint_, dir_.path(), "out.safetensors");
  std::string file = get_file(dir_ / "out.safetensors");
  const std::string old_name = "\"anchor.weight\":{", new_name = "\"anchor.wEight\":{";
  file.replace(file.find(old_name), old_name.size(), new_name);
  std::ofstream(dir_ / "out.safetensors", std::ios::binary) << file;
  FindingSink sink;
  EXPECT_TRUE(open_path(dir_ / "out.safetensors", sink).find("anchor.wEight"));
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].severity, Severity::warning);
}

TEST_F(Trees, EqualNamesAreRefused) {
  MadeCheckpoint made;
  made.checkpoint.tree = dict({{"a.b", made.tensor("a.b", {1})}, {"a", dict({{"b", made.tensor("a.b", {1})}})}});
  FindingSink sink(false);
  safetensors_format()->can_carry(made.checkpoint, Target{}, sink);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].code, Exit::refused);
  EXPECT_EQ(sink.all()[0].where.key, "a.b");
  EXPECT_EQ(sink.all()[0].hint, "--drop a.b");
}

TEST_F(Trees, AReservedNameIsThatOfTheAliasAndNotOfItsTensor) {
  MadeCheckpoint made;
  const Value w = made.tensor("w", {1});
  made.checkpoint.tree = dict({{"w", w}, {"__metadata__", w}});
  FindingSink sink(false);
  safetensors_format()->can_carry(made.checkpoint, Target{}, sink);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].where.key, "__metadata__");
  EXPECT_EQ(sink.all()[0].hint, "--rename '__metadata__=metadata'");
}

TEST_F(Trees, ATreeWithAKeyTwiceIsDamaged) {
  set_tree(dict({{"model", rest({})}, {"aa", Value::integer(1)}, {"ab", Value::integer(2)}}));
  write(checkpoint_, dir_.path(), "out.safetensors");
  std::string file = get_file(dir_ / "out.safetensors");
  file.replace(file.find("[\\\"ab\\\",2]"), 8, "[\\\"aa\\\"");
  std::ofstream(dir_ / "out.safetensors", std::ios::binary) << file;
  EXPECT_EQ(error_of([&] {
              FindingSink sink;
              open_path(dir_ / "out.safetensors", sink);
            }).code,
            Exit::damaged);
}

TEST_F(Trees, ValuesLongerThanAHeaderAreRefusedBeforeTheyAreWritten) {
  set_tree(dict({{"model", rest({})}, {"b", Value::bytes(std::string(51'000'000, 'b'))}}));
  const Finding f = error_of([&] { write(checkpoint_, dir_.path(), "out.safetensors"); });
  EXPECT_EQ(f.code, Exit::refused);
  EXPECT_EQ(f.what, "values are too long for a safetensors header");
  EXPECT_EQ(f.hint, "--part model");
}

TEST_F(Trees, WhatTheFormatCannotHoldIsRefusedByName) {
  MadeCheckpoint made;
  made.checkpoint.tree = dict({{"ok", made.tensor("ok", {1})}, {"c", made.tensor("c", {1}, DType::complex128)}, {"h", made.tensor("h", {1}, DType::complex32)},
                               {"b", made.tensor("b", {1}, DType::bits8)}, {"f4", made.tensor("f4", {}, DType::float4_e2m1fn_x2)},
                               {"__metadata__", made.tensor("__metadata__", {1})}, {"\xED\xA0\x80", made.tensor("surrogate", {1})}});
  made.tensor("storage", {4}, DType::uint8);
  made.checkpoint.tensors.back().role = Role::storage;
  FindingSink sink(false);
  safetensors_format()->can_carry(made.checkpoint, Target{}, sink);
  std::vector<std::string> keys;
  for (const Finding& f : sink.all()) {
    EXPECT_EQ(f.code, Exit::refused);
    keys.push_back(f.where.key);
  }
  EXPECT_THAT(keys, testing::UnorderedElementsAre("c", "h", "b", "f4", "__metadata__", "surrogate", "storage"));
}

}  // namespace
}  // namespace fsdpctl
