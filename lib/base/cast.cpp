#include "lib/base/cast.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/base/element.h"

namespace fsdpctl {
namespace {

// Elements go through float32 (or float64) in blocks that stay in the first-level cache. The loops are free of
// branches so that the compiler makes vectors of them.
constexpr size_t kBlock = 1024;
using Floats = std::array<float, kBlock>;
using Doubles = std::array<double, kBlock>;

constexpr uint32_t kInf32 = 0x7F800000;

// ---- to float32, exactly

float widen_half(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  // The exponent moves from bias 15 to 127 by a multiplication, which normalises subnormals too.
  const auto scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude >= (uint32_t{31} << 23) ? kInf32 : 0;
  return std::bit_cast<float>(scaled | special | sign);
}

using Table = std::array<float, 256>;

Table float8_table(DType dtype) {
  Table table;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto bits = static_cast<std::byte>(i);
    table[i] = static_cast<float>(element_value(dtype, &bits));
  }
  return table;
}

const Table& float8_values(DType dtype) {
  static const Table e4m3fn = float8_table(DType::float8_e4m3fn), e5m2 = float8_table(DType::float8_e5m2),
                     e4m3fnuz = float8_table(DType::float8_e4m3fnuz), e5m2fnuz = float8_table(DType::float8_e5m2fnuz),
                     e8m0fnu = float8_table(DType::float8_e8m0fnu);
  switch (dtype) {
    case DType::float8_e4m3fn: return e4m3fn;
    case DType::float8_e5m2: return e5m2;
    case DType::float8_e4m3fnuz: return e4m3fnuz;
    case DType::float8_e5m2fnuz: return e5m2fnuz;
    default: return e8m0fnu;
  }
}

void widen(DType from, const std::byte* in, size_t n, Floats& out) {
  std::array<uint16_t, kBlock> halves;
  switch (from) {
    case DType::float32: std::memcpy(out.data(), in, n * sizeof(float)); return;
    case DType::float16:
      std::memcpy(halves.data(), in, n * sizeof(uint16_t));
      for (size_t i = 0; i < n; ++i) out[i] = widen_half(halves[i]);
      return;
    case DType::bfloat16:
      std::memcpy(halves.data(), in, n * sizeof(uint16_t));
      for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
      return;
    default: {
      const Table& values = float8_values(from);
      for (size_t i = 0; i < n; ++i) out[i] = values[static_cast<uint8_t>(in[i])];
    }
  }
}

// ---- from float32

uint16_t narrow_bfloat(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7FFFFFFF) > kInf32;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

enum class Beyond { infinity, largest, nan };   // what values beyond the range become

// Sign, E bits of exponent with this bias, M bits of mantissa. `beyond` nan: the one NaN is minus zero's pattern.
template <int E, int M, int kBias, Beyond kBeyond>
uint32_t narrow_to(uint32_t bits) {
  constexpr int kShift = 23 - M;
  constexpr uint32_t kSign = uint32_t{1} << (E + M);
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 - kBias + kShift + 1) << 23;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  const uint32_t sign = (bits >> 31) << (E + M);
  const uint32_t odd = (magnitude >> kShift) & 1;
  const uint32_t normal =
      (magnitude - (static_cast<uint32_t>(127 - kBias) << 23) + (uint32_t{1} << (kShift - 1)) - 1 + odd) >> kShift;
  // Adding a number whose last bit is the smallest subnormal lets the FPU round.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kMagic)) - kMagic;
  const uint32_t rounded = magnitude < kSmallestNormal ? subnormal : normal;
  const bool nan = magnitude > kInf32;
  if constexpr (kBeyond == Beyond::nan) {
    const uint32_t value = rounded == 0 ? 0 : rounded | sign;
    return nan || rounded >= kSign ? kSign : value;
  } else if constexpr (kBeyond == Beyond::largest) {
    return (nan ? kSign - 1 : std::min(rounded, kSign - 2)) | sign;
  } else {
    constexpr uint32_t kInfinity = ((uint32_t{1} << E) - 1) << M;
    constexpr uint32_t kNan = M == 10 ? kInfinity | 0x200 : kSign - 1;
    return (nan ? kNan : std::min(rounded, kInfinity)) | sign;
  }
}

// The power of two nearest to the magnitude (ties go up, subnormals' down); PyTorch ignores the sign.
uint8_t narrow_e8m0(uint32_t bits) {
  const uint32_t exponent = (bits >> 23) & 0xFF;
  const uint32_t fraction = bits & 0x7FFFFF;
  const bool up = exponent > 0 ? fraction >= 0x400000 : fraction > 0x400000;
  return static_cast<uint8_t>(exponent == 0xFF ? 0xFF : exponent + (up ? 1 : 0));
}

template <class T, class Narrow>
void narrow_all(const Floats& in, size_t n, std::byte* out, Narrow narrow) {
  std::array<T, kBlock> block;
  for (size_t i = 0; i < n; ++i) block[i] = static_cast<T>(narrow(std::bit_cast<uint32_t>(in[i])));
  std::memcpy(out, block.data(), n * sizeof(T));
}

void narrow(DType to, const Floats& in, size_t n, std::byte* out) {
  switch (to) {
    case DType::float32: std::memcpy(out, in.data(), n * sizeof(float)); return;
    case DType::bfloat16: return narrow_all<uint16_t>(in, n, out, narrow_bfloat);
    case DType::float16: return narrow_all<uint16_t>(in, n, out, narrow_to<5, 10, 15, Beyond::infinity>);
    case DType::float8_e5m2: return narrow_all<uint8_t>(in, n, out, narrow_to<5, 2, 15, Beyond::infinity>);
    case DType::float8_e4m3fn: return narrow_all<uint8_t>(in, n, out, narrow_to<4, 3, 7, Beyond::largest>);
    case DType::float8_e4m3fnuz: return narrow_all<uint8_t>(in, n, out, narrow_to<4, 3, 8, Beyond::nan>);
    case DType::float8_e5m2fnuz: return narrow_all<uint8_t>(in, n, out, narrow_to<5, 2, 16, Beyond::nan>);
    default: return narrow_all<uint8_t>(in, n, out, narrow_e8m0);
  }
}

// ---- what it did

// The largest magnitude that does not count as beyond the range although it becomes finite.
template <class T>
T saturation(DType to) {
  // Half-way between float8_e4m3fn's largest value, 448, and the next one if there were one.
  return to == DType::float8_e4m3fn ? T{464} : std::numeric_limits<T>::max();
}

template <class T>
CastCounts compare(const std::array<T, kBlock>& before, const std::array<T, kBlock>& after, size_t n, T limit) {
  constexpr T kMax = std::numeric_limits<T>::max();
  uint32_t changed = 0, overflowed = 0, flushed = 0;
  for (size_t i = 0; i < n; ++i) {
    const T a = before[i], b = after[i];
    const T magnitude = std::abs(a);
    changed += (a == a) & (a != b);
    overflowed += (magnitude <= kMax) & ((magnitude > limit) | !(std::abs(b) <= kMax));
    flushed += (a != 0) & (b == 0);
  }
  return {changed, overflowed, flushed};
}

struct Blocks {
  Floats floats{}, back{};
  Doubles doubles{}, doubles_back{};
};

CastCounts cast_block(DType from, DType to, const std::byte* in, std::byte* out, size_t n, Blocks& b) {
  if (from != DType::float64) {
    widen(from, in, n, b.floats);
    if (to == DType::float64) {
      for (size_t i = 0; i < n; ++i) b.doubles[i] = b.floats[i];
      std::memcpy(out, b.doubles.data(), n * sizeof(double));
      return {};
    }
    narrow(to, b.floats, n, out);
    if (to == DType::float32) return {};
    widen(to, out, n, b.back);
    return compare(b.floats, b.back, n, saturation<float>(to));
  }
  std::memcpy(b.doubles.data(), in, n * sizeof(double));
  for (size_t i = 0; i < n; ++i) b.floats[i] = static_cast<float>(b.doubles[i]);
  narrow(to, b.floats, n, out);
  widen(to, out, n, b.back);
  for (size_t i = 0; i < n; ++i) b.doubles_back[i] = b.back[i];
  return compare(b.doubles, b.doubles_back, n, saturation<double>(to));
}

}  // namespace

CastCounts& CastCounts::operator+=(const CastCounts& other) {
  changed += other.changed;
  overflowed += other.overflowed;
  flushed += other.flushed;
  return *this;
}

bool can_cast(DType from, DType to) {
  const auto castable = [](DType d) { return dtype_kind(d) == DTypeKind::floating && d != DType::float4_e2m1fn_x2; };
  return castable(from) && castable(to);
}

CastCounts cast(DType from, DType to, std::span<const std::byte> in, std::span<std::byte> out) {
  const size_t from_size = item_size(from), to_size = item_size(to);
  const size_t n = in.size() / from_size;
  Blocks blocks;
  CastCounts counts;
  for (size_t done = 0; done < n; done += kBlock) {
    counts += cast_block(from, to, in.data() + done * from_size, out.data() + done * to_size, std::min(kBlock, n - done),
                         blocks);
  }
  return counts;
}

}  // namespace fsdpctl
