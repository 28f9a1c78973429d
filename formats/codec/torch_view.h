// Arithmetic on a tensor's sizes and strides (elements), overflow-checked where files decide the numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/base/arena.h"

namespace fsdpctl {

// Strides only matter where a dimension has more than one element. Requires a checked_count that fits.
inline bool is_row_major(Dims size, Dims stride) {
  uint64_t expected = 1;
  for (size_t d = size.size(); d-- > 0;) {
    if (size[d] != 1 && static_cast<uint64_t>(stride[d]) != expected) return false;
    expected *= static_cast<uint64_t>(size[d]);
  }
  return true;
}

// Elements from the first to the last one, both included; nullopt on overflow. Requires sizes > 0, strides >= 0.
inline std::optional<uint64_t> view_extent(Dims size, Dims stride) {
  uint64_t last = 0;
  for (size_t d = 0; d < size.size(); ++d) {
    uint64_t step;
    if (__builtin_mul_overflow(static_cast<uint64_t>(size[d] - 1), static_cast<uint64_t>(stride[d]), &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return std::nullopt;
    }
  }
  return last == UINT64_MAX ? std::nullopt : std::optional(last + 1);
}

}  // namespace fsdpctl
