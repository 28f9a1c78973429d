#include "lib/train/shard_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdpctl::train {
namespace {

std::vector<Shape> some_shapes(std::mt19937& random) {
  std::vector<Shape> shapes(1 + random() % 5);
  for (Shape& shape : shapes) {
    for (size_t d = random() % 4; d-- > 0;) shape.push_back(static_cast<int64_t>(random() % 7));
  }
  return shapes;
}

// Every element of every parameter is in exactly one shard, in order, and shards do not overlap.
void expect_tiled(const ShardLayout& layout, const std::vector<Shape>& shapes) {
  ASSERT_EQ(layout.runs.size(), shapes.size() * static_cast<size_t>(layout.ranks));
  for (size_t p = 0; p < shapes.size(); ++p) {
    uint64_t next = 0;
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const ShardRun& run = layout.runs_of(rank)[p];
      EXPECT_EQ(run.rank, rank);
      EXPECT_EQ(run.parameter, p);
      if (run.count == 0) continue;
      EXPECT_EQ(run.begin, next);
      next += run.count;
    }
    EXPECT_EQ(next, element_count(shapes[p]));
    const uint64_t end = p + 1 < shapes.size() ? layout.full_offset[p + 1] : layout.full_count;
    EXPECT_LE(layout.full_offset[p] + element_count(shapes[p]), end);
  }
  for (int rank = 0; rank < layout.ranks; ++rank) {
    uint64_t used = 0;
    for (const ShardRun& run : layout.runs_of(rank)) {
      if (run.count == 0) continue;
      EXPECT_GE(run.shard_offset, used);
      used = run.shard_offset + run.count;
    }
    EXPECT_LE(used, layout.shard_count);
  }
  // What the flag promises.
  bool in_place = true;
  for (const ShardRun& run : layout.runs) {
    const uint64_t gathered = static_cast<uint64_t>(run.rank) * layout.shard_count + run.shard_offset;
    if (run.count > 0) in_place &= gathered == layout.full_offset[run.parameter] + run.begin;
  }
  EXPECT_EQ(layout.gathered_is_full, in_place);
}

TEST(ShardLayout, TilesWhateverShapes) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<Shape> shapes = some_shapes(random);
    const int ranks = 1 + static_cast<int>(random() % 6);
    const ShardLayout flat = flat_layout(shapes, ranks, 1u << random() % 4);
    expect_tiled(flat, shapes);
    EXPECT_TRUE(flat.gathered_is_full);
    const ShardLayout rows = per_parameter_layout(shapes, ranks);
    expect_tiled(rows, shapes);
    EXPECT_TRUE(ranks > 1 || rows.gathered_is_full);
    if (::testing::Test::HasFailure()) FAIL() << "case " << i;
  }
}

// By hand, after FlatParamHandle and FSDPParam of PyTorch 2.13.
TEST(ShardLayout, FlatAsFsdp1Pads) {
  const ShardLayout layout = flat_layout(std::vector<Shape>{{3, 3}, {5}, {2, 2}}, 4, 4);   // float32: 16 bytes are 4
  EXPECT_EQ(layout.full_offset, (std::vector<uint64_t>{0, 12, 20}));
  EXPECT_EQ(layout.full_count, 24u);
  EXPECT_EQ(layout.shard_count, 6u);
  EXPECT_EQ(layout.runs_of(1)[0].begin, 6u);   // [6, 9) of the first
  EXPECT_EQ(layout.runs_of(1)[0].count, 3u);
  EXPECT_EQ(layout.runs_of(1)[1].count, 0u);
  EXPECT_EQ(layout.runs_of(2)[1].count, 5u);
}

TEST(ShardLayout, RowsAsTorchChunk) {
  const ShardLayout layout = per_parameter_layout(std::vector<Shape>{{5, 2}, {}, {1, 3}}, 4);   // rows 2, 2, 1, 0
  EXPECT_EQ(layout.shard_count, 4u + 1u + 3u);
  EXPECT_EQ(layout.runs_of(2)[0].begin, 8u);
  EXPECT_EQ(layout.runs_of(2)[0].count, 2u);
  EXPECT_EQ(layout.runs_of(3)[0].count, 0u);
  EXPECT_EQ(layout.runs_of(0)[1].count, 1u);   // a number of no dimensions is one row
  EXPECT_EQ(layout.runs_of(1)[1].count, 0u);
}

}  // namespace
}  // namespace fsdpctl::train
