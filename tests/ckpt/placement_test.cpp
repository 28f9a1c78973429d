#include "lib/ckpt/placement.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

std::string text(const std::vector<int64_t>& shape, const std::vector<MadePiece>& pieces) {
  MadeCheckpoint m;
  m.tensor("t", shape, pieces);
  return placement_text(stored_placement(m.checkpoint, 0));
}

TEST(StoredPlacement, TellsHowATensorIsCut) {
  EXPECT_EQ(text({}, {{{}, {}, 0}}), "Replicate");
  EXPECT_EQ(text({3}, {{{0}, {3}, 0}, {{0}, {3}, 1}}), "Replicate");
  EXPECT_EQ(text({5, 2}, {{{0, 0}, {3, 2}, 0}, {{3, 0}, {2, 2}, 1}, {{5, 0}, {0, 2}, 2}}), "Shard(0)");
  EXPECT_EQ(text({5, 2}, {{{0, 0}, {1, 2}, 0}, {{1, 0}, {4, 2}, 1}}), "Shard(0)");     // cut anywhere
  EXPECT_EQ(text({2, 6}, {{{0, 0}, {2, 3}, 0}, {{0, 3}, {2, 3}, 1}}), "Shard(1)");
  EXPECT_EQ(text({1, 6}, {{{0, 0}, {1, 3}, 0}, {{0, 3}, {1, 3}, 1}}), "Shard(1)");
  EXPECT_EQ(text({2, 4}, {{{0, 0}, {1, 2}, 0}, {{0, 2}, {1, 2}, 1}, {{1, 0}, {1, 2}, 2}, {{1, 2}, {1, 2}, 3}}), "Shard(0) x Shard(1)");
  EXPECT_EQ(text({2, 3}, {{{0, 0}, {1, 2}, 0}, {{0, 2}, {1, 1}, 1}, {{1, 0}, {1, 3}, 1}}), "Flat");
  EXPECT_EQ(text({2, 3}, {{{0, 0}, {2, 2}, 0}, {{0, 2}, {1, 1}, 1}, {{1, 2}, {1, 1}, 1}}), "irregular");
  EXPECT_EQ(text({4}, {{{0}, {2}, 0}}), "irregular");                                  // a hole
  EXPECT_EQ(text({2, 3}, {{{0, 0}, {1, 2}, 0}, {{0, 2}, {1, 1}, 1}, {{1, 0}, {1, 2}, 1}}), "irregular");   // flat, without an end
  EXPECT_EQ(text({2, 4}, {{{0, 0}, {1, 2}, 0}, {{0, 2}, {1, 2}, 1}, {{1, 0}, {1, 2}, 2}}), "irregular");   // a grid without a cell
  EXPECT_EQ(text({0, 4}, {{{0, 0}, {0, 4}, 0}, {{0, 0}, {0, 4}, 1}}), "Replicate");
}

TEST(StoredPlacement, CountsPiecesAndReplicas) {
  MadeCheckpoint m;
  m.tensor("t", {4}, {{{0}, {2}, 0}, {{0}, {2}, 2}, {{2}, {2}, 1}, {{2}, {2}, 3}});
  const StoredPlacement placement = stored_placement(m.checkpoint, 0);
  EXPECT_EQ(placement.pieces, 2u);
  EXPECT_EQ(placement.replicas, 2u);
  EXPECT_EQ(placement.dim, 0);
}

TEST(StoredPlacement, FlatRangesOfAnyShape) {
  const std::vector<int64_t> shape = {3, 4, 5};
  for (uint64_t cut = 1; cut < 60; ++cut) {
    Arena arena;
    std::vector<MadePiece> pieces;
    const std::pair<uint64_t, uint64_t> ranges[] = {{0, cut}, {cut, 60}};
    for (int rank = 0; rank < 2; ++rank) {
      for (const Box& box : flat_range_boxes(arena, shape, ranges[rank].first, ranges[rank].second)) {
        pieces.push_back({{box.offset.begin(), box.offset.end()}, {box.size.begin(), box.size.end()}, rank});
      }
    }
    const std::string expected = cut % 20 == 0 ? "Shard(0)" : "Flat";
    EXPECT_EQ(text(shape, pieces), expected) << cut;
  }
}

// A model of two parameters, a frozen matrix, a float and an integer buffer, with AdamW on the parameters.
struct Trained {
  MadeCheckpoint m;
  explicit Trained(int64_t world_size) {
    const auto cut = [&](const std::string& key, std::vector<int64_t> shape, size_t dim = 0) {
      return world_size > 1 ? m.shard(key, shape, world_size, dim) : m.tensor(key, shape);
    };
    const Value w = cut("model.w", {6, 4}, 1), b = cut("model.b", {6}), head = cut("model.head", {6, 4});
    const Value running = m.tensor("model.running", {6}), seen = m.tensor("model.seen", {}, DType::int64);
    const Value mask = m.tensor("model.mask", {4, 4}, DType::boolean);
    m.checkpoint.tree = dict(
        {{"model", dict({{"w", w}, {"b", b}, {"head", head}, {"running", running}, {"seen", seen}, {"mask", mask}})},
         {"optim", dict({{"state", dict({{"w", dict({{"exp_avg", cut("optim.state.w.exp_avg", {6, 4}, 1)},
                                                     {"step", m.tensor("optim.state.w.step", {})},
                                                     {"row_var", m.tensor("optim.state.w.row_var", {6, 1})}})},
                                         {"b", dict({{"exp_avg", cut("optim.state.b.exp_avg", {6})}})}})},
                         {"param_groups", list({dict({{"params", names({"w", "b"})}})})}})},
         {"table", m.tensor("table", {8, 8})}});
  }
  std::map<std::string, int> dims(int64_t target) const {
    const TargetPlacement placement = place(m.checkpoint, target);
    std::map<std::string, int> out;
    for (TensorIndex t = 0; t < m.checkpoint.tensors.size(); ++t) out[std::string(m.checkpoint.tensors[t].key)] = placement.row(t).dim;
    return out;
  }
};

TEST(Place, CutsParametersAsTheSourceAndKeepsTheRestWhole) {
  const std::map<std::string, int> sharded = {
      {"model.w", 1}, {"model.b", 0}, {"model.head", 0}, {"model.running", -1}, {"model.seen", -1}, {"model.mask", -1},
      {"optim.state.w.exp_avg", 1}, {"optim.state.w.step", -1}, {"optim.state.w.row_var", -1}, {"optim.state.b.exp_avg", 0}, {"table", -1}};
  EXPECT_EQ(Trained(2).dims(3), sharded);
  // From a single file nothing says Shard(1); the frozen head counts as a parameter, the 1-d buffer does not.
  std::map<std::string, int> single = sharded;
  single["model.w"] = single["optim.state.w.exp_avg"] = 0;
  EXPECT_EQ(Trained(1).dims(3), single);
  for (const auto& entry : Trained(2).dims(1)) EXPECT_EQ(entry.second, -1) << entry.first;
}

TEST(Place, WithoutOptimizerOnlyIntegersAreBuffers) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"w", m.tensor("w", {6, 4})}, {"b", m.tensor("b", {6})}, {"ids", m.tensor("ids", {6}, DType::int64)},
                            {"none", m.tensor("none", {0, 4})}});
  const TargetPlacement placement = place(m.checkpoint, 4);
  EXPECT_EQ(placement.row(0).dim, 0);
  EXPECT_EQ(placement.row(1).dim, 0);
  EXPECT_EQ(placement.row(2).dim, -1);
  EXPECT_EQ(placement.row(3).dim, -1);
}

TEST(Place, InACutModelWhatIsStoredWholeStaysWhole) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"w", m.shard("w", {6, 4}, 2)}, {"mask", m.tensor("mask", {6, 4})}, {"ids", m.shard("ids", {6}, 2, 0, DType::int64)}});
  const TargetPlacement placement = place(m.checkpoint, 4);
  EXPECT_EQ(placement.row(0).dim, 0);
  EXPECT_EQ(placement.row(1).dim, -1);
  EXPECT_EQ(placement.row(2).dim, 0);
}

TEST(Place, OptimizerAloneWithIds) {
  MadeCheckpoint m;
  std::vector<Entry> state;
  state.push_back({Value::integer(0), dict({{"exp_avg", m.tensor("state.0.exp_avg", {4, 2})}, {"step", m.tensor("state.0.step", {})}})});
  m.checkpoint.tree = dict({{"state", Value::mapping(Kind::dict, state)},
                            {"param_groups", list({dict({{"params", list({Value::integer(0)})}})})}});
  const TargetPlacement placement = place(m.checkpoint, 2);
  EXPECT_EQ(placement.row(0).dim, 0);
  EXPECT_EQ(placement.row(1).dim, -1);
}

TEST(Place, OneCopyGoesToTheRankWithTheFewestBytes) {
  MadeCheckpoint m;
  // 3 rows over 2 ranks: 2 and 1. Then the whole ones fill up, smallest load first, ties to the lowest rank.
  m.checkpoint.tree = dict({{"model", dict({{"w", m.tensor("w", {3, 2})}})},
                            {"a", m.tensor("a", {1})}, {"b", m.tensor("b", {1})}, {"c", m.tensor("c", {9})}, {"d", m.tensor("d", {})}});
  const TargetPlacement placement = place(m.checkpoint, 2);   // loads 16, 8
  EXPECT_EQ(placement.row(1).holder, 1);                      // 16, 12
  EXPECT_EQ(placement.row(2).holder, 1);                      // 16, 16
  EXPECT_EQ(placement.row(3).holder, 0);                      // 52, 16
  EXPECT_EQ(placement.row(4).holder, 1);
}

TEST(Place, BoxesTileTheTensorForEveryWorldSize) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"model", dict({{"w", m.shard("w", {5, 7}, 2, 1)}})}});
  for (int64_t world_size = 2; world_size <= 17; ++world_size) {
    const TargetPlacement placement = place(m.checkpoint, world_size);
    ASSERT_EQ(placement.row(0).dim, 1);
    std::vector<int64_t> offset(2), size(2);
    int64_t next = 0;
    for (int64_t rank = 0; rank < world_size; ++rank) {
      ASSERT_TRUE(placement.holds(m.checkpoint, 0, rank));
      placement.box(m.checkpoint, 0, rank, offset, size);
      EXPECT_EQ(offset[0], 0);
      EXPECT_EQ(size[0], 5);
      EXPECT_EQ(offset[1], next);
      next += size[1];
    }
    EXPECT_EQ(next, 7);
    EXPECT_FALSE(placement.holds(m.checkpoint, 0, world_size));
  }
}

TEST(Place, RefusesWorldSizesBeyondReason) {
  MadeCheckpoint m;
  EXPECT_THROW(place(m.checkpoint, 0), Error);
  EXPECT_THROW(place(m.checkpoint, int64_t{1} << 40), Error);
}

}  // namespace
}  // namespace fsdpctl
