#include "lib/base/element.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace fsdpctl {
namespace {

template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// sign | exponent | mantissa with gradual underflow. Specials are the caller's business.
double small_float(uint32_t bits, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const uint32_t exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const bool negative = (bits >> (mantissa_bits + exponent_bits)) & 1;
  const double scale = std::ldexp(1.0, 1 - bias - mantissa_bits);
  const double magnitude = exponent == 0
                               ? mantissa * scale
                               : std::ldexp(static_cast<double>(mantissa | (1u << mantissa_bits)),
                                            static_cast<int>(exponent) - bias - mantissa_bits);
  return negative ? -magnitude : magnitude;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double ieee_small(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t all_ones = (1u << exponent_bits) - 1;
  if (((bits >> mantissa_bits) & all_ones) == all_ones) {
    if (bits & ((1u << mantissa_bits) - 1)) return kNan;
    return (bits >> (exponent_bits + mantissa_bits)) & 1 ? -kInf : kInf;
  }
  return small_float(bits, exponent_bits, mantissa_bits, static_cast<int>(all_ones >> 1));
}

double half(const std::byte* p) { return ieee_small(load<uint16_t>(p), 5, 10); }

double float8(DType dtype, uint8_t bits) {
  switch (dtype) {
    case DType::float8_e5m2: return ieee_small(bits, 5, 2);
    case DType::float8_e4m3fn: return (bits & 0x7F) == 0x7F ? kNan : small_float(bits, 4, 3, 7);
    case DType::float8_e4m3fnuz: return bits == 0x80 ? kNan : small_float(bits, 4, 3, 8);
    case DType::float8_e5m2fnuz: return bits == 0x80 ? kNan : small_float(bits, 5, 2, 16);
    default: return bits == 0xFF ? kNan : std::ldexp(1.0, static_cast<int>(bits) - 127);   // e8m0fnu
  }
}

FloatClass classify(double value) {
  return std::isnan(value) ? FloatClass::nan : std::isinf(value) ? FloatClass::infinite : FloatClass::finite;
}

}  // namespace

bool is_numeric(DType dtype) {
  const DTypeKind kind = dtype_kind(dtype);
  return kind != DTypeKind::bits && kind != DTypeKind::quantized && dtype != DType::float4_e2m1fn_x2;
}

double element_value(DType dtype, const std::byte* p) {
  switch (dtype) {
    case DType::float64: case DType::complex128: return load<double>(p);
    case DType::float32: case DType::complex64: return load<float>(p);
    case DType::float16: case DType::complex32: return half(p);
    case DType::bfloat16: return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(p)) << 16);
    case DType::int64: return static_cast<double>(load<int64_t>(p));
    case DType::int32: case DType::qint32: return load<int32_t>(p);
    case DType::int16: return load<int16_t>(p);
    case DType::int8: case DType::qint8: return load<int8_t>(p);
    case DType::uint64: return static_cast<double>(load<uint64_t>(p));
    case DType::uint32: return load<uint32_t>(p);
    case DType::uint16: case DType::bits16: return load<uint16_t>(p);
    case DType::float8_e4m3fn: case DType::float8_e5m2: case DType::float8_e4m3fnuz: case DType::float8_e5m2fnuz:
    case DType::float8_e8m0fnu: return float8(dtype, load<uint8_t>(p));
    default: return load<uint8_t>(p);   // uint8, bool, and the packed kinds as raw bytes
  }
}

std::pair<double, double> element_parts(DType dtype, const std::byte* p) {
  if (dtype_kind(dtype) != DTypeKind::complex) return {element_value(dtype, p), 0.0};
  return {element_value(dtype, p), element_value(dtype, p + item_size(dtype) / 2)};
}

FloatClass element_class(DType dtype, const std::byte* p) {
  const auto [re, im] = element_parts(dtype, p);
  const FloatClass a = classify(re), b = classify(im);
  return a > b ? a : b;
}

}  // namespace fsdpctl
