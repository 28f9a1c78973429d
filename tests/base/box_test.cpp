#include "lib/base/box.h"

#include <gtest/gtest.h>

#include <limits>

namespace fsdpctl {
namespace {

TEST(Box, FlatRangeBoxesCoverExactlyTheRangeInOrder) {
  Arena arena;
  const std::vector<std::vector<int64_t>> shapes = {{}, {5}, {3, 4}, {2, 3, 4}, {1, 3, 1, 2}, {4, 1}};
  for (const auto& shape : shapes) {
    const uint64_t n = count(shape);
    std::vector<int64_t> strides(shape.size());
    row_major_strides(shape, strides);
    for (uint64_t begin = 0; begin <= n; ++begin) {
      for (uint64_t end = begin; end <= n; ++end) {
        std::vector<Box> boxes = flat_range_boxes(arena, shape, begin, end);
        EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
        uint64_t next = begin;
        for (const Box& box : boxes) {
          ASSERT_TRUE(contains(shape, box)) << box_text(box);
          const auto start = flat_start(shape, box);
          ASSERT_TRUE(start.has_value()) << box_text(box);
          EXPECT_EQ(*start, next);
          next += count(box);
        }
        EXPECT_EQ(next, end);
      }
    }
  }
}

TEST(Box, ChunkExtentIsTorchChunk) {
  using P = std::pair<int64_t, int64_t>;
  EXPECT_EQ(chunk_extent(6, 4, 2), P(4, 2));
  EXPECT_EQ(chunk_extent(6, 4, 3), P(6, 0));
  EXPECT_EQ(chunk_extent(5, 2, 1), P(3, 2));
  EXPECT_EQ(chunk_extent(0, 3, 1), P(0, 0));
  EXPECT_EQ(chunk_extent(1, 17, 16), P(1, 0));
}

TEST(Box, TextOfABoxBeyondAllNumbersIsNoOverflow) {
  const std::vector<int64_t> big = {std::numeric_limits<int64_t>::max()};
  EXPECT_EQ(box_text({big, big}), "[9223372036854775807, 9223372036854775807)");
  EXPECT_EQ(box_text({Dims{}, Dims{}}), "[]");
}

TEST(Box, CheckedCountSeesOverflowBehindAZero) {
  const std::vector<int64_t> big = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_FALSE(checked_count(big).has_value());
  EXPECT_FALSE(checked_count(std::vector<int64_t>{2, -1}).has_value());
  EXPECT_EQ(checked_count(std::vector<int64_t>{3, 0, 2}), 0u);
  EXPECT_EQ(checked_count(Dims{}), 1u);
}

}  // namespace
}  // namespace fsdpctl
