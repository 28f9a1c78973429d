// The exact sum of squares of a tensor's blocks, and their unscaled copy, at the speed of memory. Included by cpu_loops.h only;
// internal linkage.
//
// A square of an FP32 value fills 48 of FP64's 53 bits, so FP64 cannot simply add them up. Instead each square q is split
// at a bit that is the same for the whole block: hi, a multiple of the grid G, and the rest, lo = q - hi. With Q = 2^(2 (E -
// 126)) > q for the block's largest exponent E, the adder does it: in a lane that starts at 128 Q and stays below
// 256 Q, the last bit is G = 2^-45 Q, so lane + q is q rounded to G. 128 additions a lane stay exact. The rests are below
// G / 2 and multiples of the square of the last bit of the block's smallest element; they too add up without rounding as
// long as elements differ by no more than `span` binary orders of magnitude. The few that are smaller are added one by one.
//
// So a block is read twice: for its largest and smallest element, and, from the first-level cache while the next block is
// fetched, for the sum.
#pragma once

#include <cstddef>

#include "kernels/cpu_vector.h"
#include "kernels/exact_sum.h"
#include "kernels/table.h"

namespace fsdpctl::kernels {
namespace {

constexpr size_t kNormBlock = 2048;
constexpr size_t kLanes = 16;   // 128 additions each

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

// ---- the first reading

struct Extent {
  uint32_t largest;    // magnitude, as FP32's bits
  uint32_t smallest;   // not zero; meaningless if all are zero
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

// The same on 16 bits, whose order is that of the values.
Extent extent_of(const uint16_t* x, size_t n, FloatType type) {
  int16_t largest = 0, below_smallest = 0x7FFF;
  for (size_t i = 0; i < n; ++i) {
    const auto magnitude = static_cast<int16_t>(x[i] & 0x7FFF);
    const auto below = static_cast<int16_t>((magnitude - 1) & 0x7FFF);
    largest = magnitude > largest ? magnitude : largest;
    below_smallest = below < below_smallest ? below : below_smallest;
  }
  const auto most = static_cast<uint16_t>(largest), least = static_cast<uint16_t>(below_smallest + 1);
  if (type == FloatType::float16) return {bits_of(widen_float16(most)), bits_of(widen_float16(least)) & kMagnitude};
  return {bits_of(widen_bfloat16(most)), bits_of(widen_bfloat16(least)) & kMagnitude};
}

int exponent_of(uint32_t magnitude, int least) {
  const int exponent = static_cast<int>(magnitude >> 23);
  return exponent < least ? least : exponent;
}

double power_of_two(int exponent) { return __builtin_bit_cast(double, static_cast<uint64_t>(1023 + exponent) << 52); }

// Where 2^exponent lies in an ExactSum.
uint32_t position_of(int exponent) { return static_cast<uint32_t>(exponent - kLowestExponent); }

// ---- the second reading

template <FloatType kType, class T>
FSDPCTL_SHARED void load_eight(const T* x, Floats& out) {
  if constexpr (kType == FloatType::float32) {
    load(x, out);
  } else if constexpr (kType == FloatType::float16) {
    load_float16(x, out);
  } else {
    load_bfloat16(x, out);
  }
}

enum class Write { nothing, here, past_caches };

// Where the unscaled gradients go.
struct Unscaled {
  float* out;   // null if not wanted
  float factor;
  bool stream;
};

// Sixteen elements: body(four of them, 0..3) four times; `to` receives the unscaled ones.
template <FloatType kType, Write kWrite, class T, class Body>
FSDPCTL_SHARED void for_sixteen(const T* x, float* to, float factor, Body body) {
  for (int k = 0; k < 2; ++k) {
    Floats eight;
    load_eight<kType>(x + 8 * k, eight);
    if constexpr (kWrite != Write::nothing) store<kWrite == Write::past_caches>(to + 8 * k, eight * factor);
    Doubles low, high;
    to_doubles(eight, low, high);
    body(low, 2 * k);
    body(high, 2 * k + 1);
  }
}

// A whole block, padded with zeros.
template <FloatType kType, Write kWrite, class T, class Body>
FSDPCTL_SHARED void for_lanes(const T* x, size_t n, float* to, float factor, Body body) {
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    const uintptr_t ahead = reinterpret_cast<uintptr_t>(x + i) + kNormBlock * sizeof(T);
    __builtin_prefetch(reinterpret_cast<const void*>(ahead));   // the next block; beyond the tensor's end it does nothing
    for_sixteen<kType, kWrite>(x + i, kWrite == Write::nothing ? nullptr : to + i, factor, body);
  }
  if (whole == n) return;
  T rest[kLanes] = {};
  float scaled[kLanes];
  __builtin_memcpy(rest, x + whole, (n - whole) * sizeof(T));
  for_sixteen<kType, kWrite>(rest, scaled, factor, body);
  if (kWrite != Write::nothing) __builtin_memcpy(to + whole, scaled, (n - whole) * sizeof(float));
}

// All exponents within kPlainSpan of the largest, 16 bits of square.
template <FloatType kType, Write kWrite, class T>
void add_plain(const T* x, size_t n, const Unscaled& unscaled, int smallest, ExactSum& sum) {
  Doubles lanes[4] = {};
  for_lanes<kType, kWrite>(x, n, unscaled.out, unscaled.factor, [&](const Doubles& four, int k)
                           __attribute__((always_inline)) { lanes[k] += four * four; });
  const int unit = 2 * (smallest - 126 - significance(kType).bits);   // the square of the smallest element's last bit
  const double per_unit = power_of_two(-unit);
  int64_t total = 0;
  for (const Doubles& lane : lanes) {
    for (int i = 0; i < 4; ++i) total += static_cast<int64_t>(lane[i] * per_unit);
  }
  add_scaled(total, position_of(unit), [&](uint32_t limb, int64_t chunk) { sum.limb[limb] += chunk; });
}

// All exponents within the type's span of the largest. `bits`: of the elements, which may be fewer than kType's.
template <FloatType kType, Write kWrite, class T>
void add_split(const T* x, size_t n, const Unscaled& unscaled, int largest, int smallest, int bits, ExactSum& sum) {
  const int grid = 2 * (largest - 126) - 45;
  const double start = power_of_two(grid + 52);
  Doubles high[4], low[4] = {};
  for (Doubles& lane : high) lane = Doubles{start, start, start, start};
  for_lanes<kType, kWrite>(x, n, unscaled.out, unscaled.factor, [&](const Doubles& four, int k) __attribute__((always_inline)) {
    const Doubles square = four * four;
    const Doubles next = high[k] + square;
    low[k] += square - (next - high[k]);
    high[k] = next;
  });
  // From `start` to twice that, the bits of an FP64 count in steps of the grid.
  Integers steps{};
  Doubles rests{};
  for (int k = 0; k < 4; ++k) {
    steps += __builtin_bit_cast(Integers, high[k]) - __builtin_bit_cast(int64_t, start);
    rests += low[k];
  }
  const auto add = [&](uint32_t limb, int64_t chunk) { sum.limb[limb] += chunk; };
  add_scaled(steps[0] + steps[1] + steps[2] + steps[3], position_of(grid), add);
  const int unit = 2 * (smallest - 126 - bits);
  const double rest = rests[0] + rests[1] + rests[2] + rests[3];
  add_scaled(static_cast<int64_t>(rest * power_of_two(-unit)), position_of(unit), add);
}

// ---- blocks that need more care

// Replaces by zero, in x, the elements that the fast ways do not take: those are counted or added one by one.
void set_apart(float* x, size_t n, uint32_t least, GradientNorm& result) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_of(x[i]) & kMagnitude;
    if (magnitude >= kInfinity) {
      ++result.nonfinite;
      x[i] = 0.0f;
    } else if (magnitude != 0 && magnitude < least) {
      add_square(magnitude, [&](uint32_t limb, int64_t chunk) { result.squares.limb[limb] += chunk; });
      x[i] = 0.0f;
    }
  }
}

// Any values; `x` is changed.
void add_with_care(float* x, size_t n, const Significance& s, GradientNorm& result) {
  set_apart(x, n, 0, result);
  const Extent extent = extent_of(x, n);
  if (extent.largest == 0) return;
  const int largest = exponent_of(extent.largest, s.least);
  int smallest = exponent_of(extent.smallest, s.least);
  if (largest - smallest > s.span) {
    smallest = largest - s.span;
    set_apart(x, n, static_cast<uint32_t>(smallest) << 23, result);
  }
  add_split<FloatType::float32, Write::nothing>(x, n, Unscaled{}, largest, smallest, s.bits, result.squares);
}

// n <= kNormBlock elements. At most 2^30 elements between normalisations of the sum.
template <FloatType kType, Write kWrite, class T>
void add_block(const T* x, size_t n, const Unscaled& unscaled, GradientNorm& result) {
  constexpr Significance s = significance(kType);
  Extent extent;
  if constexpr (kType == FloatType::float32) {
    extent = extent_of(x, n);
  } else {
    extent = extent_of(x, n, kType);
  }
  const int largest = exponent_of(extent.largest, s.least), smallest = exponent_of(extent.smallest, s.least);
  const bool ordinary = extent.largest != 0 && extent.largest < kInfinity;
  if (kType == FloatType::bfloat16 && ordinary && largest - smallest <= kPlainSpan) {
    add_plain<kType, kWrite>(x, n, unscaled, smallest, result.squares);
  } else if (ordinary && largest - smallest <= s.span) {
    add_split<kType, kWrite>(x, n, unscaled, largest, smallest, s.bits, result.squares);
  } else {
    float wide[kNormBlock];
    for (size_t i = 0; i < n; ++i) {
      if constexpr (kType == FloatType::float32) {
        wide[i] = x[i];
      } else {
        wide[i] = kType == FloatType::float16 ? widen_float16(x[i]) : widen_bfloat16(x[i]);
      }
    }
    if (unscaled.out != nullptr) {
      for (size_t i = 0; i < n; ++i) unscaled.out[i] = wide[i] * unscaled.factor;
    }
    add_with_care(wide, n, s, result);
  }
}

template <FloatType kType, Write kWrite, class T>
void add_blocks(const T* x, size_t n, Unscaled unscaled, GradientNorm& result) {
  for (size_t at = 0; at < n; at += kNormBlock) {
    const size_t size = n - at < kNormBlock ? n - at : kNormBlock;
    add_block<kType, kWrite>(x + at, size, unscaled, result);
    if (kWrite != Write::nothing) unscaled.out += size;
  }
}

template <FloatType kType, class T>
void add_range(const T* x, size_t n, const Unscaled& unscaled, GradientNorm& result) {
  if (unscaled.out == nullptr) return add_blocks<kType, Write::nothing>(x, n, unscaled, result);
  if (unscaled.stream) return add_blocks<kType, Write::past_caches>(x, n, unscaled, result);
  add_blocks<kType, Write::here>(x, n, unscaled, result);
}

}  // namespace
}  // namespace fsdpctl::kernels
