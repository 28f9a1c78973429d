// Writing distributed checkpoints: what is laid out is read back by our own reader, for any world size. (Real PyTorch
// judges whole conversions: tests/torch.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "formats/dcp.h"
#include "formats/dcp_flatten.h"
#include "lib/ckpt/tiling.h"
#include "tests/support/error_of.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/slow_reference.h"
#include "tests/support/temp_dir.h"
#include "tests/support/written_checkpoint.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

Checkpoint open_directory(const std::string& path) {
  FindingSink sink;
  Checkpoint c = dcp_format()->open(Source::open(path), sink);
  resolve_pieces(c, 2, sink);
  check_tiling(c, sink);
  for (const Finding& f : sink.all()) {
    if (f.what == "unknown class kept as it is") continue;   // of the fixture with foreign objects
    EXPECT_NE(f.severity, Severity::warning) << f.what << " " << f.where.text() << " " << f.saw_text();
  }
  return c;
}

void write_to(const std::string& directory, const Checkpoint& c, const TargetPlacement& placement) {
  Target target;
  target.placement = &placement;
  for (const auto& file : dcp_format()->lay_out(c, target)) {
    std::ofstream(directory + "/" + file->path(), std::ios::binary) << slow_write(c, *file);
  }
}

// Trees by their shape and plain values; tensors by dtype, shape and bytes.
void expect_same(const Checkpoint& a, const Value& x, const Checkpoint& b, const Value& y, const std::string& path) {
  SCOPED_TRACE(path);
  if (x.is_mapping()) {
    ASSERT_TRUE(y.is(Kind::dict));
    ASSERT_EQ(x.entries().size(), y.entries().size());
    for (size_t i = 0; i < x.entries().size(); ++i) {
      const std::string key = key_text(x.entries()[i].key);
      ASSERT_EQ(key, key_text(y.entries()[i].key));
      expect_same(a, x.entries()[i].value, b, y.entries()[i].value, path + "/" + key);
    }
  } else if ((x.is(Kind::list) || x.is(Kind::tuple)) && has_tensor(x)) {
    ASSERT_EQ(x.kind(), y.kind());
    ASSERT_EQ(x.items().size(), y.items().size());
    for (size_t i = 0; i < x.items().size(); ++i) expect_same(a, x.items()[i], b, y.items()[i], path + "/" + std::to_string(i));
  } else if (x.is(Kind::tensor)) {
    ASSERT_TRUE(y.is(Kind::tensor));
    const TensorIndex s = x.as_tensor().index, t = y.as_tensor().index;
    EXPECT_EQ(a.tensors[s].dtype, b.tensors[t].dtype);
    EXPECT_TRUE(equal(a.tensors[s].shape, b.tensors[t].shape));
    EXPECT_EQ(slow_read(a, s), slow_read(b, t));
  } else if (x.is_sequence() && has_mapping(x)) {
    ASSERT_EQ(x.items().size(), y.items().size());
    for (size_t i = 0; i < x.items().size(); ++i) expect_same(a, x.items()[i], b, y.items()[i], path + "/" + std::to_string(i));
  } else {
    EXPECT_TRUE(equal(x, y));
  }
}

std::vector<std::string> real_checkpoints() {
  std::vector<std::string> found;
  for (const auto& fixture : fs::directory_iterator(test_data("2.13.0"))) {
    const std::string name = fixture.path().filename().string();
    if (name.starts_with("dcp-") && fs::exists(fixture.path() / "ckpt/.metadata")) found.push_back((fixture.path() / "ckpt").string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(DcpLayout, RealCheckpointsSurviveAnyWorldSize) {
  ASSERT_GT(real_checkpoints().size(), 10u);
  for (const std::string& path : real_checkpoints()) {
    FindingSink sink;
    Checkpoint c = dcp_format()->open(Source::open(path), sink);
    resolve_pieces(c, 1, sink);
    for (int64_t world_size : {1, 2, 3, 7}) {
      SCOPED_TRACE(path + " for " + std::to_string(world_size));
      TempDir out;
      write_to(out.path(), c, place(c, world_size));
      const Checkpoint again = open_directory(out.path());
      expect_same(c, c.tree, again, again.tree, "");
      EXPECT_EQ(again.world_size, world_size);
      EXPECT_EQ(again.aliases.size(), c.aliases.size());
      EXPECT_TRUE(again.stale_files.empty());
    }
  }
}

// Random tensors, cut as random formats cut them, to random world sizes.
TEST(DcpLayout, RandomTensorsSurviveAnyWorldSize) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    WrittenCheckpoint made(seed);
    for (int i = 0; i < 12; ++i) made.add(random_tensor(made.random));
    made.write();
    MadeEntries entries;
    for (TensorIndex t = 0; t < made.checkpoint.tensors.size(); ++t) entries.emplace_back("t" + std::to_string(t), Value::tensor({t}));
    made.checkpoint.tree = dict(entries);
    const int64_t world_size = static_cast<int64_t>(made.random() % 17) + 1;
    std::vector<TargetPlacement::Row> rows;
    for (const TensorInfo& t : made.checkpoint.tensors) {
      const auto dims = t.shape.size();
      const bool cut = dims > 0 && count(t.shape) > 0 && made.random() % 3 > 0;
      rows.push_back({static_cast<int16_t>(cut ? made.random() % dims : -1), static_cast<int32_t>(made.random() % static_cast<uint64_t>(world_size))});
      if (!cut) rows.back().dim = -1;
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", world size " + std::to_string(world_size));
    TempDir out;
    write_to(out.path(), made.checkpoint, TargetPlacement(world_size, rows));
    const Checkpoint again = open_directory(out.path());
    expect_same(made.checkpoint, made.checkpoint.tree, again, again.tree, "");
    EXPECT_EQ(again.world_size, world_size);
  }
}

// ---- what goes where

TEST(DcpLayout, ChunksAreWherePyTorchPutsThem) {
  WrittenCheckpoint made(1);
  const TensorIndex five = made.add({.shape = {5, 3}}), two = made.add({.shape = {2}}), scalar = made.add({.shape = {}});
  made.write();
  made.checkpoint.tree = dict({{"five", Value::tensor({five})}, {"two", Value::tensor({two})}, {"scalar", Value::tensor({scalar})}, {"step", Value::integer(7)}});
  TempDir out;
  write_to(out.path(), made.checkpoint, TargetPlacement(4, {{0, 0}, {0, 0}, {-1, 3}}));
  const Checkpoint c = open_directory(out.path());
  std::vector<std::string> pieces;
  for (const Piece& p : c.pieces) pieces.push_back(std::string(c.tensors[p.tensor].key) + " " + std::to_string(p.rank) + " " + box_text(p.box));
  // torch.chunk: 2, 2, 1 rows, and an empty chunk at the end on the first rank that has none. One of them only, as DCP knows items by their offset.
  EXPECT_THAT(pieces, ElementsAre("five 0 [0, 2) x [0, 3)", "five 1 [2, 4) x [0, 3)", "five 2 [4, 5) x [0, 3)", "five 3 [5, 5) x [0, 3)",
                                  "two 0 [0, 1)", "two 1 [1, 2)", "two 2 [2, 2)", "scalar 3 []"));
}

TEST(DcpLayout, RanksWithoutItemsHaveEmptyFiles) {
  WrittenCheckpoint made(2);
  const TensorIndex t = made.add({.shape = {3}});
  made.write();
  made.checkpoint.tree = dict({{"w", Value::tensor({t})}});
  TempDir out;
  write_to(out.path(), made.checkpoint, TargetPlacement(3, {{-1, 1}}));
  EXPECT_EQ(fs::file_size(out / "__0_0.distcp"), 0u);
  EXPECT_EQ(fs::file_size(out / "__2_0.distcp"), 0u);
  const Checkpoint c = open_directory(out.path());
  EXPECT_EQ(c.world_size, 3);
  EXPECT_EQ(c.pieces[0].rank, 1);
}

TEST(DcpLayout, TiedTensorsAreStoredOnceAndStayTied) {
  WrittenCheckpoint made(3);
  const TensorIndex t = made.add({.shape = {40, 30}}), u = made.add({.shape = {40, 30}});
  made.write();
  made.checkpoint.tree = dict({{"embed", Value::tensor({t})}, {"other", Value::tensor({u})}, {"head", Value::tensor({t})}, {"deep", dict({{"er", Value::tensor({t})}})}});
  TempDir out;
  write_to(out.path(), made.checkpoint, TargetPlacement(3, {{0, 0}, {0, 0}}));
  const Checkpoint c = open_directory(out.path());
  expect_same(made.checkpoint, made.checkpoint.tree, c, c.tree, "");
  EXPECT_EQ(c.tensors.size(), 2u);
  EXPECT_EQ(c.pieces.size(), 6u);
  std::vector<std::string> aliases;
  for (const Alias& a : c.aliases) aliases.push_back(a.key + " of " + std::string(c.tensors[a.tensor].key));
  EXPECT_THAT(aliases, ElementsAre("head of embed", "deep.er of embed"));
}

TEST(DcpLayout, KeepsWhatPyTorchForgetsAndWhatItStoresWhole) {
  WrittenCheckpoint made(4);
  const TensorIndex t = made.add({.shape = {4}}), big = made.add({.shape = {700, 100}});
  made.write();
  const Value tuple = Value::sequence(Kind::tuple, {Value::integer(1), Value::tensor({big}), list({Value::tensor({t})})});
  made.checkpoint.tree = dict({
      {"empty", dict({})},
      {"list", list({Value::integer(1), dict({{"t", Value::tensor({t})}}), dict({}), list({})})},
      {"plain", list({Value::integer(1), list({Value::string("x")})})},
      {"tuple", tuple},
      {"long", Value::string(std::string(3 << 20, 'x'))},
      {"after", Value::real(0.5)},
  });
  std::vector<std::string> names;
  const DcpFlatState flat(made.checkpoint.tree);
  for (const DcpSavedLeaf& leaf : flat.leaves()) names.emplace_back(leaf.fqn);
  EXPECT_THAT(names, ElementsAre("empty", "list.0", "list.1.t", "list.2", "list.3", "plain", "tuple", "long", "after"));
  for (int64_t world_size : {1, 2}) {
    TempDir out;
    write_to(out.path(), made.checkpoint, TargetPlacement(world_size, {{-1, 0}, {-1, 0}}));
    const Checkpoint c = open_directory(out.path());
    expect_same(made.checkpoint, made.checkpoint.tree, c, c.tree, "");
  }
}

TEST(DcpLayout, NothingAtAllIsACheckpointToo) {
  WrittenCheckpoint made(5);
  made.write();
  made.checkpoint.tree = dict({});
  TempDir out;
  write_to(out.path(), made.checkpoint, TargetPlacement(2, {}));
  const Checkpoint c = open_directory(out.path());
  EXPECT_TRUE(c.tree.is(Kind::dict));
  EXPECT_TRUE(c.tree.entries().empty());
}

// ---- what cannot be carried

std::vector<Finding> losses(const Value& tree, Checkpoint& c) {
  c.tree = tree;
  const TargetPlacement placement(1, std::vector<TargetPlacement::Row>(c.tensors.size()));
  Target target;
  target.placement = &placement;
  FindingSink sink(false);
  dcp_format()->can_carry(c, target, sink);
  return sink.all();
}

TEST(DcpCarry, SaysWhatIsLost) {
  MadeCheckpoint made;
  const Value w = made.tensor("w", {2});
  const auto numbered = Value::mapping(Kind::dict, {{Value::integer(0), dict({{"exp_avg", w}})}, {Value::boolean(true), Value()}});
  const auto keys = losses(dict({{"state", numbered}}), made.checkpoint);
  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys[0].what, "keys become strings");
  EXPECT_EQ(keys[0].where.key, "state");
  EXPECT_EQ(keys[0].found, "0, True");
  EXPECT_EQ(keys[0].severity, Severity::warning);

  made.checkpoint.metadata_file = "state.pt";   // the mapping at the top has no path
  const auto top = losses(Value::mapping(Kind::ordered_dict, {{Value::integer(0), w}}), made.checkpoint);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].what, "keys become strings");
  EXPECT_EQ(top[0].where.text(), "state.pt");
  EXPECT_EQ(top[1].where.text(), "state.pt (OrderedDict)");

  const auto ordered = losses(dict({{"m", Value::mapping(Kind::ordered_dict, {{Value::string("w"), w}})}}), made.checkpoint);
  ASSERT_EQ(ordered.size(), 1u);
  EXPECT_EQ(ordered[0].severity, Severity::note);
  EXPECT_THAT(ordered[0].where.key, HasSubstr("OrderedDict"));

  TensorLeaf parameter{w.as_tensor().index, true, true};
  const auto attributes = losses(dict({{"w", Value::tensor(parameter, dict({{"tag", Value::integer(1)}}))}}), made.checkpoint);
  ASSERT_EQ(attributes.size(), 2u);
  EXPECT_EQ(attributes[0].where.key, "w");
  EXPECT_EQ(attributes[0].severity, Severity::warning);

  EXPECT_TRUE(losses(dict({{"w", w}, {"step", Value::integer(1)}}), made.checkpoint).empty());
}

Value object_of(const std::string& module, const std::string& name, Value argument) {
  auto* node = new ObjectNode;
  node->how = ObjectNode::How::reduce;
  node->callable = Value::global(module, name);
  node->args = Value::sequence(Kind::tuple, {std::move(argument)});
  return Value::adopt(node);
}

TEST(DcpCarry, RefusesWhatDoesNotFit) {
  MadeCheckpoint made;
  const Value w = made.tensor("w", {2});
  const Value quantised = object_of("torch._utils", "_rebuild_qtensor", Value::storage(w.as_tensor().index, "torch.QInt8Storage"));
  for (const Value& tree : {dict({{"q", quantised}}), dict({{"q", list({Value::integer(1), quantised})}})}) {
    const auto found = losses(tree, made.checkpoint);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].code, Exit::refused);
    EXPECT_EQ(found[0].severity, Severity::error);
    EXPECT_EQ(found[0].where.key, "q");
  }
  const auto meta = losses(dict({{"m", object_of("torch._utils", "_rebuild_meta_tensor_no_storage", Value())}}), made.checkpoint);
  ASSERT_EQ(meta.size(), 1u);
  EXPECT_EQ(meta[0].code, Exit::refused);
  const auto mine = losses(dict({{"o", object_of("my.code", "Config", Value::integer(1))}, {"d", object_of("datetime", "date", Value::integer(1))}}), made.checkpoint);
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(mine[0].severity, Severity::warning);
  EXPECT_EQ(mine[0].found, "my.code.Config");

  const auto twice = losses(dict({{"a", dict({{"b.c", w}})}, {"a.b", dict({{"c", w}})}}), made.checkpoint);
  ASSERT_GE(twice.size(), 1u);
  EXPECT_EQ(twice[0].code, Exit::refused);
  EXPECT_EQ(twice[0].found, "('a', 'b.c') and ('a.b', 'c')");
  EXPECT_EQ(twice[0].hint, "--drop a.b.c, which leaves both out");
  made.checkpoint.metadata_file = "list.pt";
  const auto top = losses(list({w}), made.checkpoint);
  ASSERT_EQ(top.size(), 1u);
  EXPECT_EQ(top[0].code, Exit::refused);
  EXPECT_EQ(top[0].where.path, "list.pt");
  EXPECT_EQ(top[0].hint, "--to torch, which keeps what is at the top");

  const Value tuple = Value::sequence(Kind::tuple, {w, w});
  const auto tied = losses(dict({{"w", w}, {"t", tuple}}), made.checkpoint);
  ASSERT_EQ(tied.size(), 1u);
  EXPECT_EQ(tied[0].code, Exit::refused);
  EXPECT_EQ(tied[0].where.key, "t");
  EXPECT_EQ(tied[0].found, "also at w");
  EXPECT_TRUE(losses(dict({{"t", tuple}}), made.checkpoint).empty());
}

}  // namespace
}  // namespace fsdpctl
