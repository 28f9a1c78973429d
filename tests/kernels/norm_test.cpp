// Sums of squares against a number of 700 binary digits, added by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/scalars.h"
#include "tests/kernels/implementations.h"

namespace fsdpctl::kernels {
namespace {

constexpr FloatType f32 = FloatType::float32, f16 = FloatType::float16, bf16 = FloatType::bfloat16;

class BinaryNumber {
 public:
  void add_square(float x) {
    int exponent = 0;
    const auto mantissa = static_cast<uint64_t>(std::ldexp(std::frexp(std::fabs(x), &exponent), 24));
    add(mantissa * mantissa, 2 * (exponent - 24) + kScale);
  }
  // As limbs, normalised.
  ExactSum limbs() const {
    ExactSum sum{};
    for (int i = 0; i < 32 * kLimbs; ++i) {
      sum.limb[i / 32] += int64_t{digits_[static_cast<size_t>(i + kLowestExponent + kScale)]} << (i % 32);
    }
    return sum;
  }
  // Nearest FP64, ties to even, digit by digit.
  double rounded() const {
    int top = static_cast<int>(digits_.size()) - 1;
    while (top >= 0 && digits_[static_cast<size_t>(top)] == 0) --top;
    double result = 0;
    for (int i = top; i >= 0 && i > top - 53; --i) result += std::ldexp(digits_[static_cast<size_t>(i)], i - kScale);
    const int last = top - 52;
    if (last <= 0 || digits_[static_cast<size_t>(last - 1)] == 0) return result;
    bool more = false;
    for (int i = 0; i < last - 1; ++i) more |= digits_[static_cast<size_t>(i)] != 0;
    const bool odd = digits_[static_cast<size_t>(last)] != 0;
    return more || odd ? result + std::ldexp(1.0, last - kScale) : result;
  }

 private:
  static constexpr int kScale = 350;   // digit i stands for 2^(i - kScale)
  void add(uint64_t amount, int position) {
    int carry = 0;
    for (auto i = static_cast<size_t>(position); amount != 0 || carry != 0; ++i, amount >>= 1) {
      const int sum = digits_[i] + static_cast<int>(amount & 1) + carry;
      digits_[i] = static_cast<int8_t>(sum & 1);
      carry = sum >> 1;
    }
  }
  std::array<int8_t, 700> digits_{};
};

BinaryNumber squares_of(const std::vector<float>& values) {
  BinaryNumber sum;
  for (const float x : values) sum.add_square(x);
  return sum;
}
double sum_of_squares(const std::vector<float>& values) { return squares_of(values).rounded(); }

// What a tensor of `type` holds of the values, as FP32 and as its own elements.
struct Tensor {
  std::vector<float> values;
  std::vector<uint16_t> halves;   // empty for FP32
  FloatType type;
};
Tensor tensor_of(std::vector<float> values, FloatType type) {
  Tensor tensor{std::move(values), {}, type};
  if (type == f32) return tensor;
  for (float& x : tensor.values) {
    const uint16_t half = type == f16 ? narrow_float16(x) : narrow_bfloat16(x);
    tensor.halves.push_back(half);
    x = type == f16 ? widen_float16(half) : widen_bfloat16(half);
  }
  return tensor;
}

std::vector<float> gaussian(size_t n, float sigma, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, sigma);
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

// Finite values of every exponent, in random order.
std::vector<float> any_magnitude(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& x : values) {
    do {
      x = float_of(static_cast<uint32_t>(random()));
    } while (!std::isfinite(x));
  }
  return values;
}

class Norm : public KernelsTest {
 protected:
  const void* upload_tensor(const Tensor& tensor, size_t shift = 0) {
    if (tensor.type == f32) return upload(tensor.values, shift);
    return upload(tensor.halves, shift);
  }
  GradientNorm norm_of(const Tensor& tensor, size_t shift = 0) {
    const GradientEntry entry{upload_tensor(tensor, shift), nullptr, tensor.values.size(), tensor.type, 0};
    GradientNorm result{};
    kernels().unscale_norm({&entry, 1}, 1, {&result, 1});
    return result;
  }
  // Every bit of the sum, also those that its value as FP64 does not show.
  void expect_exact(const Tensor& tensor) {
    GradientNorm result = norm_of(tensor);
    EXPECT_EQ(result.nonfinite, 0u);
    const BinaryNumber expected = squares_of(tensor.values);
    EXPECT_EQ(value(result.squares), expected.rounded()) << tensor.values.size() << " elements";
    normalize(result.squares);
    const ExactSum limbs = expected.limbs();
    EXPECT_TRUE(std::equal(limbs.limb, limbs.limb + kLimbs, result.squares.limb)) << tensor.values.size() << " elements";
  }
};

TEST_P(Norm, IsTheExactSumRoundedOnce) {
  for (const FloatType type : {f32, f16, bf16}) {
    for (const size_t n : {1, 2, 15, 16, 17, 2047, 2048, 2049, 9000}) {
      expect_exact(tensor_of(gaussian(n, 0.02f, static_cast<unsigned>(n)), type));
    }
    expect_exact(tensor_of(std::vector<float>(5000, 0.0f), type));
    expect_exact(tensor_of(std::vector<float>(70000, 1.7f), type));         // lanes filled to the brim
    expect_exact(tensor_of(gaussian(5000, 1e-6f, 5), type));                 // FP16: subnormals
  }
}

TEST_P(Norm, TakesEveryMagnitude) {
  for (const FloatType type : {f32, bf16}) expect_exact(tensor_of(any_magnitude(20000, 11), type));
  std::vector<float> halves;
  for (uint32_t i = 0; i < 0x7C00; ++i) halves.push_back(widen_float16(static_cast<uint16_t>(i)));
  expect_exact(tensor_of(halves, f16));
  const float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  expect_exact(tensor_of({most, least, 0.0f, -most}, f32));
  expect_exact(tensor_of(std::vector<float>(5000, most), f32));
  expect_exact(tensor_of(std::vector<float>(5000, least), f32));
}

// Around every limit of the fast ways: elements with all their bits set, over 1, 2, ... 48 binary orders of magnitude.
TEST_P(Norm, EveryRangeOfMagnitudes) {
  for (const FloatType type : {f32, f16, bf16}) {
    for (int span = 0; span < (type == f16 ? 30 : 48); ++span) {
      const int top = type == f16 ? 15 : 40;
      const float most = type == f32 ? 0x1.fffffep0f : type == f16 ? 0x1.ffcp0f : 0x1.fep0f;
      std::vector<float> values(2 * 2048, std::ldexp(most, top));
      for (size_t i = 0; i < values.size(); i += 3) values[i] = std::ldexp(most, top - span);
      for (size_t i = 0; i < values.size(); i += 5) values[i] = std::ldexp(most, top - span / 2);
      expect_exact(tensor_of(values, type));
    }
  }
}

TEST_P(Norm, LargeElementsDoNotHideSmallOnes) {
  for (const FloatType type : {f32, f16, bf16}) {
    std::vector<float> values(50000, type == f16 ? 0x1p-20f : 0x1p-40f);   // squares far below the last bit of the largest's
    for (size_t i = 0; i < values.size(); i += 777) values[i] = type == f16 ? 60000.f : 0x1p30f;
    expect_exact(tensor_of(values, type));
    std::sort(values.begin(), values.end());
    expect_exact(tensor_of(values, type));
    std::reverse(values.begin(), values.end());
    expect_exact(tensor_of(values, type));
  }
}

TEST_P(Norm, RoundsTiesToEven) {
  const float big = 0x1p27f, one = 1.0f, tiny = 0x1p-60f;   // big^2 = 2^54: the next FP64 is 4 away
  const std::vector<std::pair<std::vector<float>, double>> cases = {
      {{big, one}, 0x1p54},
      {{big, one, one}, 0x1p54},                                  // a tie
      {{big, one, one, tiny}, 0x1p54 + 4},
      {{big, 2.0f, one, one}, 0x1p54 + 8},                        // a tie, upwards
      {{big, 2.0f, one}, 0x1p54 + 4},
  };
  for (const auto& [values, expected] : cases) {
    EXPECT_EQ(value(norm_of(tensor_of(values, f32)).squares), expected);
    EXPECT_EQ(sum_of_squares(values), expected);
  }
}

// The promise of a training run: whoever adds up which elements, the bits are the same.
TEST_P(Norm, DoesNotDependOnHowTensorsAreCut) {
  for (const FloatType type : {f32, f16, bf16}) {
    Tensor whole = tensor_of(gaussian(40001, 0.3f, 17), type);
    const double expected = value(norm_of(whole).squares);
    for (int again = 0; again < 5; ++again) EXPECT_EQ(value(norm_of(whole).squares), expected);
    std::mt19937 random(23);
    for (const size_t ranks : {2, 3, 8}) {
      const size_t share = (whole.values.size() + ranks - 1) / ranks;
      ExactSum total{};
      for (size_t rank = 0; rank < ranks; ++rank) {
        const size_t begin = std::min(rank * share, whole.values.size()), end = std::min(begin + share, whole.values.size());
        const std::vector<float> shard(whole.values.begin() + static_cast<ptrdiff_t>(begin),
                                       whole.values.begin() + static_cast<ptrdiff_t>(end));
        add(total, norm_of(tensor_of(shard, type), rank % 7).squares);
      }
      EXPECT_EQ(value(total), expected) << ranks;
    }
    std::shuffle(whole.values.begin(), whole.values.end(), random);
    EXPECT_EQ(value(norm_of(tensor_of(whole.values, type)).squares), expected);
  }
}

TEST_P(Norm, CountsAndLeavesOutWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const FloatType type : {f32, f16, bf16}) {
    std::vector<float> values = gaussian(10000, 1, 29);
    std::vector<float> finite = values;
    for (const size_t at : {0, 1, 2049, 9999}) {
      values[at] = at == 1 ? nan : at == 2049 ? -inf : inf;
      finite[at] = 0;
    }
    const GradientNorm result = norm_of(tensor_of(values, type));
    EXPECT_EQ(result.nonfinite, 4u);
    EXPECT_EQ(value(result.squares), sum_of_squares(tensor_of(finite, type).values));
  }
}

TEST_P(Norm, UnscalesInOnePassAndAddsPerResult) {
  std::vector<GradientEntry> table;
  std::vector<Tensor> tensors;
  std::vector<float*> unscaled;
  const std::vector<size_t> sizes = {9000, 0, 5, 20000, 1, 8192, 33};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const FloatType type = i % 3 == 0 ? f32 : i % 3 == 1 ? f16 : bf16;
    tensors.push_back(tensor_of(gaussian(sizes[i], 8, static_cast<unsigned>(31 + i)), type));
    unscaled.push_back(i == 3 ? nullptr : uninitialised<float>(sizes[i] + 1) + i % 2);
    table.push_back({upload_tensor(tensors[i], i % 4), unscaled[i], sizes[i], type, static_cast<uint32_t>((i + 1) % 3)});
  }
  std::vector<GradientNorm> results(3);
  const float factor = gradient_factor(1, 24);
  kernels().unscale_norm(table, factor, results);
  kernels().unscale_norm(std::span(table).first(1), factor, results);   // adds to what is there
  for (uint32_t r = 0; r < 3; ++r) {
    std::vector<float> all;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (table[i].result != r) continue;
      for (int times = i == 0 ? 2 : 1; times > 0; --times) {
        all.insert(all.end(), tensors[i].values.begin(), tensors[i].values.end());
      }
    }
    EXPECT_EQ(value(results[r].squares), sum_of_squares(all));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (unscaled[i] == nullptr) continue;
    const std::vector<float> out = download(unscaled[i], sizes[i]);
    for (size_t j = 0; j < sizes[i]; ++j) ASSERT_EQ(out[j], tensors[i].values[j] * factor);
  }
  // In place.
  float* memory = upload(tensors[0].values);
  const GradientEntry entry{memory, memory, sizes[0], f32, 0};
  GradientNorm result{};
  kernels().unscale_norm({&entry, 1}, factor, {&result, 1});
  EXPECT_EQ(value(result.squares), sum_of_squares(tensors[0].values));
  EXPECT_EQ(download(memory, sizes[0])[17], tensors[0].values[17] * factor);
}

INSTANTIATE_TEST_SUITE_P(All, Norm, testing::ValuesIn(implementations()), name_of);

// Sums of many parts: carries and signs.
TEST(ExactSum, AddsChunksOfEitherSign) {
  std::mt19937_64 random(41);
  ExactSum sum{};
  const auto add_to = [&](uint32_t limb, int64_t chunk) { sum.limb[limb] += chunk; };
  std::vector<std::pair<int64_t, uint32_t>> parts;
  for (int i = 0; i < 1000; ++i) {
    const auto amount = static_cast<int64_t>(random() >> 6);
    parts.push_back({amount, static_cast<uint32_t>(random() % 500)});
  }
  for (const auto& [amount, position] : parts) add_scaled(amount, position, add_to);
  add_scaled(int64_t{12345}, 298, add_to);   // times 2^0
  for (const auto& [amount, position] : parts) add_scaled(-amount, position, add_to);
  EXPECT_EQ(value(sum), 12345.0);
  normalize(sum);
  for (int i = 0; i < kLimbs; ++i) EXPECT_EQ(sum.limb[i] >> 32, 0) << i;
}

TEST(ExactSum, ManyFullLimbs) {
  ExactSum most{};
  for (int i = 0; i < kLimbs - 1; ++i) most.limb[i] = 0xFFFFFFFF;
  ExactSum sum{};
  for (int i = 0; i < 1000; ++i) add(sum, most);
  EXPECT_EQ(value(sum), std::ldexp(1000.0, 32 * (kLimbs - 1) - 298));   // 1000 * (2^576 - 1), rounded
}

TEST(Scalars, ClipAndFactor) {
  EXPECT_EQ(clip_divisor(10, 1, 0), 1.0);
  EXPECT_EQ(clip_divisor(10, 1, 100), 1.0);
  EXPECT_EQ(clip_divisor(80, 8, 4), (10 + 1e-6) / 4);
  EXPECT_EQ(gradient_factor(3, 8), static_cast<float>(1.0 / 24.0));
}

}  // namespace
}  // namespace fsdpctl::kernels
