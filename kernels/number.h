// The arithmetic that CPU and GPU share: IEEE single precision with one rounding per operation, and the casts between
// FP32, FP16 and BF16. Everything here gives the same bits on both, provided that nothing contracts a multiplication
// and an addition (-ffp-contract=off, -fmad=false) and that subnormals are kept.
//
// The functions have internal linkage and are always inlined: one source file is compiled for several instruction sets,
// and a merged copy would run instructions that a machine may not have. For the same reason no std:: templates here.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define FSDPCTL_SHARED static __device__ __forceinline__
#else
#define FSDPCTL_SHARED static inline __attribute__((always_inline))
#endif

namespace fsdpctl::kernels {

// Element types of the kernels. Part of the plug-in's ABI: never renumber.
enum class FloatType : uint32_t { float32 = 0, float16 = 1, bfloat16 = 2 };

FSDPCTL_SHARED uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
FSDPCTL_SHARED float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// a * b + c, rounded once.
FSDPCTL_SHARED float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

FSDPCTL_SHARED float square_root(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return __builtin_sqrtf(value);
#endif
}

constexpr uint32_t kMagnitude = 0x7FFFFFFF;   // all but the sign
constexpr uint32_t kInfinity = 0x7F800000;    // magnitudes from here on are not finite

// ---- 16 bits to FP32: exact

FSDPCTL_SHARED float widen_bfloat16(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }

FSDPCTL_SHARED float widen_float16(uint16_t value) {
  const uint32_t magnitude = (value & 0x7FFFu) << 13;
  const uint32_t sign = (value & 0x8000u) << 16;
  // A multiplication moves the exponent's bias from 15 to 127 and normalises subnormals.
  const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
  const uint32_t special = magnitude >= 0x0F800000u ? kInfinity : 0u;
  return float_of(scaled | special | sign);
}

// ---- FP32 to 16 bits: nearest, ties to even; NaN stays a quiet NaN and keeps its sign and upper payload

FSDPCTL_SHARED uint16_t narrow_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? quiet : rounded);
}

FSDPCTL_SHARED uint16_t narrow_float16(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & kMagnitude;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + odd) >> 13;
  // The last bit of 0.5 is FP16's smallest subnormal: adding it lets the adder round.
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t rounded = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t finite = rounded < 0x7C00u ? rounded : 0x7C00u;
  const uint32_t quiet = 0x7E00u | ((magnitude >> 13) & 0x1FFu);
  return static_cast<uint16_t>((magnitude > kInfinity ? quiet : finite) | ((bits >> 16) & 0x8000u));
}

}  // namespace fsdpctl::kernels
