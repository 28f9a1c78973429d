// Casts against references that find the nearest value by looking at all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/kernels/implementations.h"

namespace fsdpctl::kernels {
namespace {

constexpr FloatType f32 = FloatType::float32, f16 = FloatType::float16, bf16 = FloatType::bfloat16;

// The value of 16 bits from the definition of the format.
double value_of(FloatType type, uint32_t bits) {
  const int mantissa_bits = type == f16 ? 10 : 7, bias = type == f16 ? 15 : 127;
  const int exponent = static_cast<int>((bits & 0x7FFF) >> mantissa_bits);
  const auto mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * bias + 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const double significand = exponent == 0 ? mantissa : mantissa + std::ldexp(1.0, mantissa_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
}

uint32_t infinity_of(FloatType type) { return type == f16 ? 0x7C00 : 0x7F80; }

// All finite magnitudes, ascending; the index is the bit pattern. The last one is what lies beyond, where infinity begins.
std::vector<double> magnitudes(FloatType type) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits < infinity_of(type); ++bits) values.push_back(value_of(type, bits));
  values.push_back(2 * values.back() - values[values.size() - 2]);
  return values;
}

// Nearest, ties to the even pattern.
uint16_t nearest(FloatType type, const std::vector<double>& values, float x) {
  const uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) {
    const uint32_t bits = bits_of(x);
    const uint32_t payload = type == f16 ? 0x7E00 | ((bits >> 13) & 0x1FF) : ((bits >> 16) & 0x7FFF) | 0x40;
    return static_cast<uint16_t>(payload | sign);
  }
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= values.back()) return static_cast<uint16_t>(infinity_of(type) | sign);
  const auto above = static_cast<uint32_t>(std::upper_bound(values.begin(), values.end(), magnitude) - values.begin());
  const uint32_t below = above - 1;
  const double down = magnitude - values[below], up = values[above] - magnitude;
  const bool take_up = up < down || (up == down && below % 2 == 1);
  return static_cast<uint16_t>((take_up ? above : below) | sign);
}

// Every value of the 16-bit type, every half-way point between neighbours, what lies next to both, and their negatives.
std::vector<float> telling_values(FloatType type) {
  std::vector<float> values;
  const std::vector<double> all = magnitudes(type);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto exact = static_cast<float>(all[i]);
    const auto half_way = static_cast<float>(i + 1 < all.size() ? (all[i] + all[i + 1]) / 2 : all[i]);
    for (const float x : {exact, half_way}) {
      for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, std::numeric_limits<float>::infinity())}) {
        values.push_back(y);
        values.push_back(-y);
      }
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) values.push_back(float_of(static_cast<uint32_t>(random())));   // NaNs among them
  return values;
}

class Cast : public KernelsTest {
 protected:
  template <class To, class From>
  std::vector<To> cast(const std::vector<From>& in, FloatType from, FloatType to, CastCounts* counts = nullptr, size_t shift = 0) {
    const From* source = upload(in, shift);
    To* target = uninitialised<To>(in.size() + shift) + shift;
    const CastEntry entry{source, target, in.size(), from, to};
    kernels().cast({&entry, 1}, counts == nullptr ? std::span<CastCounts>() : std::span<CastCounts>(counts, 1));
    kernels().synchronize();
    return download(target, in.size());
  }
};

TEST_P(Cast, WidensEveryHalfExactly) {
  for (const FloatType type : {f16, bf16}) {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    const std::vector<float> wide = cast<float>(all, type, f32);
    for (uint32_t i = 0; i < wide.size(); ++i) {
      const double expected = value_of(type, i);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << i;
      } else {
        ASSERT_EQ(wide[i], expected) << i;
      }
      ASSERT_EQ(std::signbit(wide[i]), i >= 0x8000) << i;
    }
    ASSERT_EQ(cast<uint16_t>(all, type, type), all);   // bit for bit, signalling NaNs too
  }
}

TEST_P(Cast, NarrowsToTheNearestEven) {
  for (const FloatType type : {f16, bf16}) {
    const std::vector<float> in = telling_values(type);
    const std::vector<double> values = magnitudes(type);
    CastCounts counts{}, expected{};
    const std::vector<uint16_t> out = cast<uint16_t>(in, f32, type, &counts);
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_EQ(out[i], nearest(type, values, in[i])) << in[i];
      const uint32_t magnitude = out[i] & 0x7FFF;
      expected.overflowed += std::isfinite(in[i]) && magnitude == infinity_of(type);
      expected.underflowed += in[i] != 0 && magnitude == 0;
    }
    EXPECT_GT(expected.overflowed, 0u);
    EXPECT_GT(expected.underflowed, 0u);
    EXPECT_EQ(counts.overflowed, expected.overflowed);
    EXPECT_EQ(counts.underflowed, expected.underflowed);
  }
}

TEST_P(Cast, BetweenHalves) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const FloatType from : {f16, bf16}) {
    const FloatType to = from == f16 ? bf16 : f16;
    const std::vector<double> values = magnitudes(to);
    CastCounts counts{}, expected{};
    const std::vector<uint16_t> out = cast<uint16_t>(all, from, to, &counts);
    for (uint32_t i = 0; i < out.size(); ++i) {
      const double x = value_of(from, i);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(value_of(to, out[i])));
        continue;
      }
      ASSERT_EQ(out[i], nearest(to, values, static_cast<float>(x))) << i;
      expected.overflowed += std::isfinite(x) && (out[i] & 0x7FFF) == infinity_of(to);
      expected.underflowed += x != 0 && (out[i] & 0x7FFF) == 0;
    }
    EXPECT_EQ(counts.overflowed, expected.overflowed);
    EXPECT_EQ(counts.underflowed, expected.underflowed);
  }
}

TEST_P(Cast, OneTableOfManySizesAlignmentsAndTypes) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3e4f);
  const std::vector<size_t> sizes = {0, 1, 7, 8, 9, 63, 1024, 1025, 0, 8191, 8192, 8193, 100000, 3};
  std::vector<CastEntry> table;
  std::vector<std::vector<float>> inputs;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<float> in(sizes[i]);
    for (float& x : in) x = normal(random);
    const float* source = upload(in, i % 5);
    const FloatType type = i % 2 == 0 ? f16 : bf16;
    table.push_back({source, uninitialised<uint16_t>(sizes[i] + 3) + i % 3, sizes[i], f32, type});
    inputs.push_back(std::move(in));
  }
  std::vector<CastCounts> counts(table.size(), CastCounts{99, 99});
  kernels().cast(table, counts);
  for (size_t i = 0; i < table.size(); ++i) {
    const std::vector<double> values = magnitudes(table[i].target_type);
    const std::vector<uint16_t> out = download(static_cast<const uint16_t*>(table[i].target), sizes[i]);
    uint64_t overflowed = 0;
    for (size_t j = 0; j < out.size(); ++j) {
      ASSERT_EQ(out[j], nearest(table[i].target_type, values, inputs[i][j]));
      overflowed += (out[j] & 0x7FFF) == infinity_of(table[i].target_type);
    }
    EXPECT_EQ(counts[i].overflowed, overflowed);
    EXPECT_EQ(counts[i].underflowed, 0u);
  }
  EXPECT_GT(counts[12].overflowed, 0u);   // FP16 ends at 65504
}

INSTANTIATE_TEST_SUITE_P(All, Cast, testing::ValuesIn(implementations()), name_of);

}  // namespace
}  // namespace fsdpctl::kernels
