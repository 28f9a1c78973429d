// The exact sum of squares of a block, at the speed of memory. Included by cpu_loops.h only; internal linkage.
//
// A square of an FP32 value fills 48 of FP64's 53 bits, so FP64 cannot simply add them up. Instead each square q is split
// at a bit that is the same for the whole block: hi, a multiple of the grid G, and the rest, lo = q - hi. With Q = 2^(2 (E -
// 126)) > q for the block's largest exponent E, the adder does it: in a lane that starts at 128 Q and stays below
// 256 Q, the last bit is G = 2^-45 Q, so lane + q is q rounded to G. 128 additions a lane stay exact. The rests are below
// G / 2 and multiples of the square of the last bit of the block's smallest element; they too add up without rounding as
// long as elements differ by no more than `span` binary orders of magnitude. The few that are smaller are added one by one.
#pragma once

#include <cstddef>

#include "kernels/exact_sum.h"
#include "kernels/table.h"

namespace fsdpctl::kernels {
namespace {

constexpr size_t kNormBlock = 2048;
constexpr size_t kLanes = 16;   // 128 additions each

using Doubles = double __attribute__((vector_size(32)));
using Quads = float __attribute__((vector_size(16)));
using Integers = int64_t __attribute__((vector_size(32)));
constexpr int kVectors = 4;     // of 4 lanes

// Exponents are FP32's biased ones; a subnormal has that of the smallest normal number.
struct Significance {
  int bits;      // of the significand, hidden one included
  int least;     // the smallest exponent
  int span;      // how much smaller than the largest exponent one may be for the split sum
};
constexpr Significance significance(FloatType type) {
  switch (type) {
    case FloatType::float16: return {11, 113, 33};    // a span of 29 is all there is
    case FloatType::bfloat16: return {8, 1, 36};
    default: return {24, 1, 20};
  }
}
constexpr int kPlainSpan = 15;   // BF16: squares of 16 bits, 128 of them, need no split up to here

struct Extent {
  uint32_t largest;    // magnitude, as bits
  uint32_t smallest;   // not zero; kInfinity or more if all are zero
};

Extent extent_of(const float* x, size_t n) {
  int32_t largest = 0, below_smallest = 0x7FFFFFFF;
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int32_t>(bits_of(x[i]) & kMagnitude);
    const int32_t below = (magnitude - 1) & 0x7FFFFFFF;   // zero becomes the largest number
    largest = magnitude > largest ? magnitude : largest;
    below_smallest = below < below_smallest ? below : below_smallest;
  }
  return {static_cast<uint32_t>(largest), static_cast<uint32_t>(below_smallest) + 1u};
}

int exponent_of(uint32_t magnitude, int least) {
  const int exponent = static_cast<int>(magnitude >> 23);
  return exponent < least ? least : exponent;
}

double power_of_two(int exponent) { return __builtin_bit_cast(double, static_cast<uint64_t>(1023 + exponent) << 52); }

// Where 2^exponent lies in an ExactSum.
uint32_t position_of(int exponent) { return static_cast<uint32_t>(exponent - kLowestExponent); }

// The block as lanes: calls body(four elements, 0..3) for all, a multiple of kLanes; `x` is padded with zeros.
template <class Body>
void for_lanes(const float* x, size_t n, Body body) {
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (int k = 0; k < kVectors; ++k) {
      Quads quad;
      __builtin_memcpy(&quad, x + i + 4 * static_cast<size_t>(k), sizeof quad);
      const Doubles four = __builtin_convertvector(quad, Doubles);
      body(four, k);
    }
  }
  if (whole == n) return;
  float rest[kLanes] = {};
  __builtin_memcpy(rest, x + whole, (n - whole) * sizeof(float));
  for (int k = 0; k < kVectors; ++k) {
    Quads quad;
    __builtin_memcpy(&quad, rest + 4 * k, sizeof quad);
    const Doubles four = __builtin_convertvector(quad, Doubles);
    body(four, k);
  }
}

// All exponents within kPlainSpan of `largest`, 16 bits of square.
void add_plain(const float* x, size_t n, int smallest, int bits, ExactSum& sum) {
  Doubles lanes[kVectors] = {};
  for_lanes(x, n, [&](const Doubles& four, int k) { lanes[k] += four * four; });
  const int unit = 2 * (smallest - 126 - bits);   // the square of the smallest element's last bit
  const double per_unit = power_of_two(-unit);
  int64_t total = 0;
  for (const Doubles& lane : lanes) {
    for (int i = 0; i < 4; ++i) total += static_cast<int64_t>(lane[i] * per_unit);
  }
  add_scaled(total, position_of(unit), [&](uint32_t limb, int64_t chunk) { sum.limb[limb] += chunk; });
}

// All exponents within the type's span of `largest`.
void add_split(const float* x, size_t n, int largest, int smallest, int bits, ExactSum& sum) {
  const int grid = 2 * (largest - 126) - 45;
  const double start = power_of_two(grid + 52);
  Doubles high[kVectors], low[kVectors] = {};
  for (Doubles& lane : high) lane = Doubles{start, start, start, start};
  for_lanes(x, n, [&](const Doubles& four, int k) {
    const Doubles square = four * four;
    const Doubles next = high[k] + square;
    low[k] += square - (next - high[k]);
    high[k] = next;
  });
  // From `start` to twice that, the bits of an FP64 count in steps of the grid.
  Integers steps{};
  Doubles rests{};
  for (int k = 0; k < kVectors; ++k) {
    steps += __builtin_bit_cast(Integers, high[k]) - __builtin_bit_cast(int64_t, start);
    rests += low[k];
  }
  const auto add = [&](uint32_t limb, int64_t chunk) { sum.limb[limb] += chunk; };
  add_scaled(steps[0] + steps[1] + steps[2] + steps[3], position_of(grid), add);
  const int unit = 2 * (smallest - 126 - bits);
  const double rest = rests[0] + rests[1] + rests[2] + rests[3];
  add_scaled(static_cast<int64_t>(rest * power_of_two(-unit)), position_of(unit), add);
}

// Copies x to `kept` with zeros for the elements that the fast ways do not take: those are counted or added one by one.
void set_apart(const float* x, size_t n, uint32_t least, float* kept, GradientNorm& result) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & kMagnitude;
    const bool finite = magnitude < kInfinity;
    kept[i] = finite && magnitude >= least ? x[i] : 0.0f;
    if (!finite) {
      ++result.nonfinite;
    } else if (magnitude != 0 && magnitude < least) {
      add_square(magnitude, [&](uint32_t limb, int64_t chunk) { result.squares.limb[limb] += chunk; });
    }
  }
}

// Adds the squares of n <= kNormBlock elements. At most 2^30 elements between normalisations of the sum.
void add_squares(const float* x, size_t n, FloatType type, GradientNorm& result) {
  const Significance s = significance(type);
  float kept[kNormBlock];
  Extent extent = extent_of(x, n);
  if (extent.largest >= kInfinity) {
    set_apart(x, n, 0, kept, result);
    x = kept;
    extent = extent_of(x, n);
  }
  if (extent.largest == 0) return;
  const int largest = exponent_of(extent.largest, s.least);
  int smallest = exponent_of(extent.smallest, s.least);
  if (type == FloatType::bfloat16 && largest - smallest <= kPlainSpan) {
    return add_plain(x, n, smallest, s.bits, result.squares);
  }
  if (largest - smallest > s.span) {
    float wide[kNormBlock];
    smallest = largest - s.span;
    set_apart(x, n, static_cast<uint32_t>(smallest) << 23, wide, result);
    return add_split(wide, n, largest, smallest, s.bits, result.squares);
  }
  add_split(x, n, largest, smallest, s.bits, result.squares);
}

}  // namespace
}  // namespace fsdpctl::kernels
