#include "kernels/exact_sum.h"

#include <bit>
#include <cmath>

namespace fsdpctl::kernels {
namespace {

constexpr int64_t kLow32 = 0xFFFFFFFF;

// Bits [position, position + 64) of the number. Requires normalised limbs and position >= 0.
uint64_t window(const ExactSum& sum, int position) {
  uint64_t bits = 0;
  for (int i = 0; i < kLimbs; ++i) {
    const int at = 32 * i - position;
    const auto limb = static_cast<uint64_t>(sum.limb[i]);
    if (at >= 0 && at < 64) bits |= limb << at;
    if (at < 0 && at > -64) bits |= limb >> -at;
  }
  return bits;
}

bool any_below(const ExactSum& sum, int position) {
  for (int i = 0; i < kLimbs && 32 * i < position; ++i) {
    const int above = position - 32 * i;
    const auto limb = static_cast<uint64_t>(sum.limb[i]);
    if (above >= 64 ? limb != 0 : (limb & ((uint64_t{1} << above) - 1)) != 0) return true;
  }
  return false;
}

}  // namespace

void normalize(ExactSum& sum) {
  for (int i = 0; i + 1 < kLimbs; ++i) {
    sum.limb[i + 1] += sum.limb[i] >> 32;
    sum.limb[i] &= kLow32;
  }
}

void add(ExactSum& sum, const ExactSum& other) {
  ExactSum addend = other;
  normalize(addend);
  normalize(sum);
  for (int i = 0; i < kLimbs; ++i) sum.limb[i] += addend.limb[i];
  normalize(sum);
}

double value(const ExactSum& exact) {
  ExactSum sum = exact;
  normalize(sum);
  int top = kLimbs - 1;
  while (top >= 0 && sum.limb[top] == 0) --top;
  if (top < 0) return 0;
  const int width = 32 * top + static_cast<int>(std::bit_width(static_cast<uint64_t>(sum.limb[top])));
  const int lowest = width > 53 ? width - 53 : 0;   // position of the result's last bit
  uint64_t mantissa = window(sum, lowest);
  if (lowest > 0) {
    const bool half = (window(sum, lowest - 1) & 1) != 0;
    if (half && ((mantissa & 1) != 0 || any_below(sum, lowest - 1))) ++mantissa;
  }
  return std::ldexp(static_cast<double>(mantissa), lowest + kLowestExponent);
}

}  // namespace fsdpctl::kernels
