// One GPU thread's part of unscale_norm. The idea is cpu_norm.h's, with a window of exponents that a thread keeps open across
// its elements instead of one per block: no thread waits for another until the block's end.
//
// The window at `top`: squares are below Q = 2^(2 (top - 126)). `high` starts at 2^12 Q and takes at most 2^12 squares, so
// its last bit stays G = 2^-40 Q; the rests, below G / 2, add up exactly in `low` for elements of p significant bits that are
// no smaller than top - (41 - p). Others are added one by one.
#pragma once

#include "kernels/exact_sum.h"
#include "kernels/grid_table.h"
#include "kernels/table.h"

namespace fsdpctl::kernels {

// The rows are sorted by result, and block (x, y) of a two-dimensional grid takes every blocks-th tile of result y.
struct NormTable {
  TiledTable<GradientEntry> table;
  const uint64_t* result_tile;    // first tile of each result, and the end
};

// Each block's own sum, where its threads reach it: limbs as unsigned words, which add up the same.
struct BlockSum {
  uint64_t limb[kLimbs];
  uint64_t nonfinite;
};

constexpr int kWindowGroups = 4096 / kGroup;

struct SquareWindow {
  double start, high, low;
  int top;        // 0: none open
  int bottom;     // smallest exponent that may go in
  int unit;       // exponent of what `low` counts
  int groups;     // that may still go in
};

FSDPCTL_SHARED double power_of_2(int exponent) {
  return __builtin_bit_cast(double, static_cast<uint64_t>(1023 + exponent) << 52);
}

FSDPCTL_SHARED int significant_bits(FloatType type) {
  return type == FloatType::float32 ? 24 : type == FloatType::float16 ? 11 : 8;
}
FSDPCTL_SHARED int least_exponent(FloatType type) { return type == FloatType::float16 ? 113 : 1; }

FSDPCTL_SHARED int clamped_exponent(uint32_t magnitude, int least) {
  const int exponent = static_cast<int>(magnitude >> 23);
  return exponent < least ? least : exponent;
}

template <class Grid>
struct AddTo {
  const Grid& grid;
  BlockSum& sum;
#if defined(__CUDACC__)
  __device__ __forceinline__
#endif
  void operator()(uint32_t limb, int64_t chunk) const {
    grid.add(&sum.limb[limb], static_cast<uint64_t>(chunk));
  }
};

template <class Grid>
FSDPCTL_SHARED void close_window(const Grid& grid, SquareWindow& window, BlockSum& sum) {
  if (window.top == 0) return;
  const AddTo<Grid> add{grid, sum};
  const auto steps = static_cast<int64_t>(__builtin_bit_cast(uint64_t, window.high) - __builtin_bit_cast(uint64_t, window.start));
  add_scaled(steps, static_cast<uint32_t>(2 * (window.top - 126) - 40 - kLowestExponent), add);
  const auto rests = static_cast<int64_t>(window.low * power_of_2(-window.unit));
  if (rests != 0) add_scaled(rests, static_cast<uint32_t>(window.unit - kLowestExponent), add);
  window.top = 0;
}

FSDPCTL_SHARED void open_window(SquareWindow& window, int largest, FloatType type) {
  const int bits = significant_bits(type), least = least_exponent(type);
  window.top = largest + 2;     // room for somewhat larger elements
  const int bottom = window.top - (41 - bits);
  window.bottom = bottom < least ? least : bottom;
  window.unit = 2 * (window.bottom - 126 - bits);
  window.start = power_of_2(2 * (window.top - 126) + 12);
  window.high = window.start;
  window.low = 0;
  window.groups = kWindowGroups;
}

FSDPCTL_SHARED void add_to_window(SquareWindow& window, float value) {
  const double square = static_cast<double>(value) * static_cast<double>(value);
  const double next = window.high + square;
  window.low += square - (next - window.high);
  window.high = next;
}

template <class Grid>
FSDPCTL_SHARED void add_group(const Grid& grid, float (&values)[kGroup], FloatType type, SquareWindow& window, BlockSum& sum) {
  uint32_t largest = 0, below_smallest = kMagnitude;
  for (uint32_t i = 0; i < kGroup; ++i) {
    uint32_t magnitude = bits_of(values[i]) & kMagnitude;
    if (magnitude >= kInfinity) {
      grid.add(&sum.nonfinite, 1);
      values[i] = 0.0f;
      magnitude = 0;
    }
    const uint32_t below = (magnitude - 1u) & kMagnitude;   // zero becomes the largest number
    largest = magnitude > largest ? magnitude : largest;
    below_smallest = below < below_smallest ? below : below_smallest;
  }
  if (largest == 0) return;
  const int least = least_exponent(type);
  const int high = clamped_exponent(largest, least), low = clamped_exponent(below_smallest + 1u, least);
  const bool far_below = low < window.bottom && high + 2 < window.top - (41 - significant_bits(type)) / 2;
  if (high > window.top || window.groups == 0 || far_below) {
    close_window(grid, window, sum);
    open_window(window, high, type);
  }
  --window.groups;
  if (low < window.bottom) {
    for (uint32_t i = 0; i < kGroup; ++i) {
      const uint32_t magnitude = bits_of(values[i]) & kMagnitude;
      if (magnitude == 0 || clamped_exponent(magnitude, least) >= window.bottom) continue;
      add_square(magnitude, AddTo<Grid>{grid, sum});
      values[i] = 0.0f;
    }
  }
  for (uint32_t i = 0; i < kGroup; ++i) add_to_window(window, values[i]);
}

// First phase. `sum` is zero at the start.
template <class Grid>
FSDPCTL_SHARED void norm_thread(const Grid& grid, const NormTable& norm, uint32_t result, float inverse_scale, BlockSum& sum) {
  SquareWindow window{};
  FloatType open_type = FloatType::float32;
  const TiledTable<GradientEntry>& table = norm.table;
  for (uint64_t index = norm.result_tile[result] + grid.block; index < norm.result_tile[result + 1]; index += grid.blocks) {
    const GradientEntry entry = table.rows[table.tile_row[index]];
    if (entry.type != open_type) close_window(grid, window, sum);
    open_type = entry.type;
    for_groups(grid, tile_at(table, index, entry.count), [&](uint64_t at, uint32_t n) {
      float values[kGroup];
      load_group(entry.gradient, entry.type, at, n, values);
      if (entry.unscaled != nullptr) {
        float scaled[kGroup];
        for (uint32_t i = 0; i < kGroup; ++i) scaled[i] = values[i] * inverse_scale;
        store_group(entry.unscaled, FloatType::float32, at, n, scaled);
      }
      add_group(grid, values, entry.type, window, sum);
    });
  }
  close_window(grid, window, sum);
}

// Second phase, when all threads of the block have ended the first: carries move up, so that any number of blocks may be
// added. `result` is an ExactSum's words and the count.
template <class Grid>
FSDPCTL_SHARED void norm_block(const Grid& grid, const BlockSum& sum, BlockSum* result) {
  if (grid.thread != 0) return;
  int64_t carry = 0;
  for (int i = 0; i < kLimbs; ++i) {
    const int64_t limb = static_cast<int64_t>(sum.limb[i]) + carry;
    carry = i + 1 < kLimbs ? limb >> 32 : 0;
    const int64_t rest = i + 1 < kLimbs ? limb & 0xFFFFFFFF : limb;
    if (rest != 0) grid.add(&result->limb[i], static_cast<uint64_t>(rest));
  }
  if (sum.nonfinite != 0) grid.add(&result->nonfinite, sum.nonfinite);
}

}  // namespace fsdpctl::kernels
