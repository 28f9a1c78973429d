#include "lib/base/crc_polynomial.h"

#include <array>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fsdpctl {
namespace {

// One CRC's field. `Word` holds a polynomial; `kPoly` is the modulus without its leading term.
template <class Word, Word kPoly>
struct Field {
  static constexpr int kBits = std::numeric_limits<Word>::digits;
  static constexpr Word kOne = Word{1} << (kBits - 1);

  static constexpr Word times_x(Word a) {
    return static_cast<Word>((a >> 1) ^ (a & 1 ? kPoly : Word{0}));
  }

  static constexpr Word multiply(Word a, Word b) {
    Word product = 0;
    for (int i = 0; i < kBits; ++i) {
      if (a & (kOne >> i)) product ^= b;
      b = times_x(b);
    }
    return product;
  }

  // floor(x^(2n) / modulus) without its leading term x^n: Barrett's constant for n bits.
  static constexpr Word barrett() {
    Word quotient = 0;
    Word rest = kPoly;   // x^n mod modulus, after the leading term was divided out
    for (int i = kBits - 1; i >= 0; --i) {
      if (rest & 1) quotient |= kOne >> i;
      rest = times_x(rest);
    }
    return quotient;
  }

  // powers[k][d] = x^(8 * d * 16^k)
  using Powers = std::array<std::array<Word, 16>, 16>;
  static constexpr Powers powers() {
    Powers table{};
    Word step = kOne >> 8;
    for (auto& row : table) {
      row[0] = kOne;
      for (size_t d = 1; d < row.size(); ++d) row[d] = multiply(row[d - 1], step);
      step = multiply(row[15], step);
    }
    return table;
  }
};

using Field64 = Field<uint64_t, 0xC96C5795D7870F42>;
using Field32 = Field<uint32_t, 0xEDB88320>;
constexpr Field64::Powers kPowers64 = Field64::powers();
constexpr Field32::Powers kPowers32 = Field32::powers();

#if defined(__x86_64__)

const bool kHasPclmul = __builtin_cpu_supports("pclmul") != 0;

__attribute__((target("pclmul"))) inline __m128i carryless(uint64_t a, uint64_t b) {
  return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(a)), _mm_cvtsi64_si128(static_cast<int64_t>(b)), 0);
}

struct Halves {
  uint64_t low, high;   // of the reflected product: low holds the powers from x^n on
};

__attribute__((target("pclmul"))) inline Halves product64(uint64_t a, uint64_t b) {
  const __m128i c = carryless(a, b);
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(c));
  const auto high = static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(c, c)));
  return {low << 1, (high << 1) | (low >> 63)};   // 127 bits, moved to the top of 128
}

__attribute__((target("pclmul"))) uint64_t multiply64(uint64_t a, uint64_t b) {
  constexpr uint64_t kBarrett = Field64::barrett();
  const Halves t = product64(a, b);
  const uint64_t quotient = t.low ^ product64(t.low, kBarrett).low;
  return t.high ^ product64(quotient, 0xC96C5795D7870F42).high;
}

__attribute__((target("pclmul"))) inline uint64_t product32(uint32_t a, uint32_t b) {
  return static_cast<uint64_t>(_mm_cvtsi128_si64(carryless(a, b))) << 1;
}

__attribute__((target("pclmul"))) uint32_t multiply32(uint32_t a, uint32_t b) {
  constexpr uint32_t kBarrett = Field32::barrett();
  const uint64_t t = product32(a, b);
  const auto low = static_cast<uint32_t>(t);
  const uint32_t quotient = low ^ static_cast<uint32_t>(product32(low, kBarrett));
  return static_cast<uint32_t>((t ^ product32(quotient, 0xEDB88320)) >> 32);
}

#endif

template <class Word, class Powers, class Multiply>
Word power_of(const Powers& table, Word one, uint64_t bytes, Multiply multiply) {
  Word power = one;
  for (size_t k = 0; bytes != 0; ++k, bytes >>= 4) {
    const size_t digit = bytes & 15;
    if (digit == 0) continue;
    power = power == one ? table[k][digit] : multiply(power, table[k][digit]);
  }
  return power;
}

}  // namespace

uint64_t crc64_multiply_plain(uint64_t a, uint64_t b) { return Field64::multiply(a, b); }
uint32_t crc32_multiply_plain(uint32_t a, uint32_t b) { return Field32::multiply(a, b); }

uint64_t crc64_multiply(uint64_t a, uint64_t b) {
#if defined(__x86_64__)
  if (kHasPclmul) return multiply64(a, b);
#endif
  return Field64::multiply(a, b);
}

uint32_t crc32_multiply(uint32_t a, uint32_t b) {
#if defined(__x86_64__)
  if (kHasPclmul) return multiply32(a, b);
#endif
  return Field32::multiply(a, b);
}

uint64_t crc64_power(uint64_t bytes) { return power_of(kPowers64, Field64::kOne, bytes, crc64_multiply); }
uint32_t crc32_power(uint64_t bytes) { return power_of(kPowers32, Field32::kOne, bytes, crc32_multiply); }

}  // namespace fsdpctl
