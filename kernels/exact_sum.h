// A sum of squares without rounding: a fixed-point number wide enough for every square of an FP32 value, so the order of the
// additions does not matter. That is what makes the gradient norm the same, bit for bit, for every number of threads, grid
// and sharding: threads, thread blocks and ranks each sum their own elements exactly, and their sums are added exactly.
// Only value() rounds, once, to the nearest FP64.
//
// The number is the sum of limb[i] * 2^(32 i - 298); 2^-298 is the square of the smallest subnormal. Limbs are signed and
// may hold carries, up to 2^30 additions' worth; normalize() moves those up. So two sums are added limb by limb, which an
// integer all-reduce over ranks does too (normalize before it).
#pragma once

#include <cstdint>

#include "kernels/number.h"

namespace fsdpctl::kernels {

inline constexpr int kLimbs = 19;             // 608 bits: (2^128)^2, for more than 2^40 elements
inline constexpr int kLowestExponent = -298;

struct ExactSum {
  int64_t limb[kLimbs];
};

// Carries moved up: limbs but the last are in [0, 2^32). The value stays.
void normalize(ExactSum& sum);
// sum += other. Both normalised first, so that any number of sums can be added.
void add(ExactSum& sum, const ExactSum& other);
// Rounded to nearest, ties to even. Requires a sum that is not negative.
double value(const ExactSum& sum);

// Adds amount * 2^(position + kLowestExponent), |amount| < 2^58, by calls add(limb, chunk).
template <class Add>
FSDPCTL_SHARED void add_scaled(int64_t amount, uint32_t position, Add add) {
  const uint32_t word = position >> 5, shift = position & 31u;
  const auto low = (static_cast<uint64_t>(amount) & 0xFFFFFFFFu) << shift;   // 63 bits
  const int64_t high = (amount >> 32) * (int64_t{1} << shift);              // signed, 57 bits
  add(word, static_cast<int64_t>(low & 0xFFFFFFFFu));
  add(word + 1, static_cast<int64_t>(low >> 32) + (high & 0xFFFFFFFF));
  add(word + 2, high >> 32);
}

// Adds the square of a finite FP32 value, given by its bits without the sign.
template <class Add>
FSDPCTL_SHARED void add_square(uint32_t magnitude, Add add) {
  const uint32_t exponent = magnitude >> 23;
  const uint64_t mantissa = (magnitude & 0x7FFFFFu) | (exponent != 0u ? 0x800000u : 0u);
  const uint32_t position = 2u * (exponent != 0u ? exponent - 1u : 0u);
  add_scaled(static_cast<int64_t>(mantissa * mantissa), position, add);
}

}  // namespace fsdpctl::kernels
