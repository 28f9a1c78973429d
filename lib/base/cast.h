// Casts between floating dtypes, value for value as PyTorch 2.13's `.to(dtype)` on the CPU: round to nearest, ties to
// even; from float64 to 16 and 8 bits by way of float32; NaN stays NaN (its payload does not). Beyond the range:
// infinity where the type has one, NaN for float8_*fnuz and float8_e8m0fnu, the largest value for float8_e4m3fn.
// Pure, thread-safe; no alignment is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lib/base/dtype.h"

namespace fsdpctl {

// What a cast did to values; all zero where nothing was cast or everything was exact.
struct CastCounts {
  uint64_t changed = 0;      // value differs after rounding
  uint64_t overflowed = 0;   // finite, and beyond the range of the new type
  uint64_t flushed = 0;      // non-zero became zero

  CastCounts& operator+=(const CastCounts& other);
  friend bool operator==(const CastCounts&, const CastCounts&) = default;
};

bool can_cast(DType from, DType to);   // both floating, neither packed

// in.size() / item_size(from) elements; `out` holds as many of `to`. Requires can_cast(from, to).
CastCounts cast(DType from, DType to, std::span<const std::byte> in, std::span<std::byte> out);

}  // namespace fsdpctl
