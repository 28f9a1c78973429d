// Boxes moved from a checkpoint's bytes into flat state, against plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include "kernels/restore.h"
#include "tests/kernels/implementations.h"

namespace fsdpctl::kernels {
namespace {

using Sizes = std::vector<uint64_t>;
constexpr FloatType f32 = FloatType::float32, f16 = FloatType::float16, bf16 = FloatType::bfloat16;
constexpr FloatType kTypes[] = {f32, f16, bf16};

Sizes row_major(const Sizes& shape) {
  Sizes stride(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) stride[d - 1] = stride[d] * shape[d];
  return stride;
}
uint64_t product(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), uint64_t{1}, std::multiplies<>()); }

void for_each_index(const Sizes& size, const std::function<void(const Sizes&)>& body) {
  Sizes index(size.size(), 0);
  for (uint64_t i = 0; i < product(size); ++i) {
    body(index);
    for (size_t d = size.size(); d-- > 0 && ++index[d] == size[d];) index[d] = 0;
  }
}
uint64_t at(const Sizes& index, const Sizes& stride) {
  return std::inner_product(index.begin(), index.end(), stride.begin(), uint64_t{0});
}

// Values as the bytes of a type, and back.
std::vector<unsigned char> encoded(FloatType type, const std::vector<float>& values, size_t offset = 0) {
  std::vector<unsigned char> bytes(offset);
  for (const float x : values) {
    const uint32_t bits = type == f32 ? bits_of(x) : type == f16 ? narrow_float16(x) : narrow_bfloat16(x);
    for (uint32_t i = 0; i < float_size(type); ++i) bytes.push_back(static_cast<unsigned char>(bits >> (8 * i)));
  }
  return bytes;
}

class Restore : public KernelsTest {
 protected:
  // Moves box [offset, offset + size) of a `shape` tensor with the given strides in memory into a row-major buffer of `size`.
  void expect_box(const Sizes& shape, const Sizes& stride, const Sizes& offset, const Sizes& size, FloatType from, FloatType to) {
    std::vector<float> values(product(shape));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 100;   // exact in every type
    const size_t odd = 3;   // bytes before the tensor, so that nothing is aligned
    const auto* source = upload(encoded(from, values, odd));
    std::vector<float> expected;
    for_each_index(size, [&](const Sizes& index) { expected.push_back(values[at(index, stride) + at(offset, stride)]); });
    const std::vector<unsigned char> bytes = encoded(to, expected);
    auto* target = upload(std::vector<unsigned char>(bytes.size(), 0xAB));
    std::vector<RestoreEntry> table;
    const Sizes target_stride = row_major(size);
    append_box(table, size, {source + odd + at(offset, stride) * float_size(from), from, stride}, {target, to, target_stride});
    kernels().restore(table, {});
    kernels().synchronize();
    EXPECT_EQ(download(target, bytes.size()), bytes);
  }
};

TEST_P(Restore, BoxesOfEveryDimensionAndType) {
  for (const FloatType from : kTypes) {
    for (const FloatType to : kTypes) {
      expect_box({}, {}, {}, {}, from, to);
      expect_box({40000}, {1}, {123}, {30011}, from, to);
      expect_box({7, 300}, {300, 1}, {2, 5}, {4, 290}, from, to);
      expect_box({7, 300}, {1, 7}, {2, 5}, {4, 290}, from, to);                                     // transposed
      expect_box({3, 4, 5, 6}, {120, 30, 6, 1}, {1, 1, 1, 1}, {2, 2, 3, 4}, from, to);
      expect_box({2, 3, 2, 3, 2, 3}, row_major({2, 3, 2, 3, 2, 3}), {0, 1, 0, 1, 0, 1}, {2, 2, 1, 2, 2, 2}, from, to);
      expect_box({2, 3, 4}, {12, 4, 1}, {0, 0, 0}, {2, 0, 4}, from, to);                            // empty
    }
  }
}

// A shard of a flat parameter is a range of the flattened tensor: three boxes that follow each other in it.
TEST_P(Restore, AFlatRangeOfAMatrix) {
  const uint64_t rows = 50, columns = 33, begin = 17, end = 1300;
  std::vector<float> values(rows * columns);
  std::iota(values.begin(), values.end(), 0.0f);
  const auto* source = upload(encoded(f32, values));
  auto* shard = upload(std::vector<float>(end - begin, -1.0f));
  std::vector<RestoreEntry> table;
  const auto add = [&](uint64_t row, uint64_t column, uint64_t height, uint64_t width) {
    const uint64_t first = row * columns + column;
    const Sizes stride = {columns, 1}, size = {height, width};
    append_box(table, size, {source + 4 * first, f32, stride}, {shard + (first - begin), f32, stride});
  };
  add(0, begin, 1, columns - begin);
  add(1, 0, end / columns - 1, columns);
  add(end / columns, 0, 1, end % columns);
  EXPECT_EQ(table.size(), 3u);
  kernels().restore(table, {});
  kernels().synchronize();
  EXPECT_EQ(download(shard, end - begin), std::vector<float>(values.begin() + begin, values.begin() + end));
}

// Nothing happens to the bits of a type that stays, signalling NaNs included, with or without strides.
TEST_P(Restore, KeepsEveryBitPattern) {
  std::vector<uint16_t> all(65536), transposed(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (size_t i = 0; i < all.size(); ++i) transposed[i % 256 * 256 + i / 256] = all[i];
  const auto* source = upload(all);
  const Sizes size = {256, 256}, stride = {256, 1}, across = {1, 256};
  for (const FloatType type : {f16, bf16}) {
    auto* straight = uninitialised<uint16_t>(all.size());
    auto* turned = uninitialised<uint16_t>(all.size());
    std::vector<RestoreEntry> table;
    append_box(table, size, {source, type, stride}, {straight, type, stride});
    append_box(table, size, {source, type, stride}, {turned, type, across});
    kernels().restore(table, {});
    kernels().synchronize();
    EXPECT_EQ(download(straight, all.size()), all);
    EXPECT_EQ(download(turned, all.size()), transposed);
  }
}

TEST_P(Restore, CountsWhatTheCastLoses) {
  const std::vector<float> values = {1e6f, 1.0f, 1e-9f, -1e6f, 0.0f, std::nanf(""), -INFINITY, 1e-10f, 2.0f};
  const auto* source = upload(encoded(f32, values, 1));
  auto* target = uninitialised<uint16_t>(9);
  std::vector<RestoreEntry> table;
  const Sizes size = {3, 3}, stride = {3, 1}, across = {1, 3};
  append_box(table, size, {source + 1, f32, across}, {target, f16, stride});
  append_box(table, size, {source + 1, f32, across}, {target, bf16, stride});
  std::vector<CastCounts> counts(2, CastCounts{7, 7});
  kernels().restore(table, counts);
  EXPECT_EQ(counts[0].overflowed, 2u);
  EXPECT_EQ(counts[0].underflowed, 2u);
  EXPECT_EQ(counts[1].overflowed, 0u);
  EXPECT_EQ(counts[1].underflowed, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, Restore, testing::ValuesIn(implementations()), name_of);

TEST(AppendBox, MergesWhatIsOneRangeInBothMemories) {
  std::vector<RestoreEntry> table;
  float from[64], to[64];
  const Sizes size = {2, 3, 4}, whole = {12, 4, 1}, gap = {16, 4, 1};
  append_box(table, size, {from, f32, whole}, {to, f32, whole});
  append_box(table, size, {from, f32, whole}, {to, f32, gap});
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].size[3], 24u);
  EXPECT_EQ(table[1].size[3], 12u);
  EXPECT_EQ(table[1].size[2], 2u);
}

}  // namespace
}  // namespace fsdpctl::kernels
