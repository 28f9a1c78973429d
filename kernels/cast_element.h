// Casting one element, and what the cast did to it. Shared by CPU and GPU.
#pragma once

#include "kernels/number.h"

namespace fsdpctl::kernels {

// `magnitude`: the bits of the FP32 value without its sign; `result`: the bits of the 16-bit value.
struct CastFlags {
  uint32_t overflowed;    // finite, and became infinite
  uint32_t underflowed;   // not zero, and became zero
};

FSDPCTL_SHARED CastFlags cast_flags(float value, uint16_t result, uint32_t infinity) {
  const uint32_t magnitude = bits_of(value) & kMagnitude;
  const uint32_t after = result & 0x7FFFu;
  return {static_cast<uint32_t>((after == infinity) & (magnitude != kInfinity)),
          static_cast<uint32_t>((after == 0u) & (magnitude != 0u))};
}

FSDPCTL_SHARED CastFlags float16_flags(float value, uint16_t result) { return cast_flags(value, result, 0x7C00u); }
FSDPCTL_SHARED CastFlags bfloat16_flags(float value, uint16_t result) { return cast_flags(value, result, 0x7F80u); }

}  // namespace fsdpctl::kernels
