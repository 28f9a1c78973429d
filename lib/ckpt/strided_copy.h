// Strided copies in memory: the same elements in two places, with different distances between them.
//
// An Axis is one dimension of a walk over the elements of a box. Walks are lists of axes, innermost first, without
// axes of count 1; an empty list is one element. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdpctl {

// Distances between neighbours, in bytes. 0 repeats an element (expanded views).
struct Axis {
  int64_t count = 1;
  int64_t source = 0;    // where they come from: on disk, or in the buffer that was read
  int64_t target = 0;    // where they go
  int64_t logical = 0;   // in the row-major order of the whole tensor
};

inline constexpr size_t kMaxAxes = 64;   // PyTorch's limit on dimensions

// Copies every element of `item` bytes (1, 2, 4, 8 or 16), blockwise: whole runs where both sides have them, tiles
// where the two sides disagree on the order. The memories must not overlap; no alignment is needed.
void strided_copy(std::byte* target, const std::byte* source, std::span<const Axis> axes, uint32_t item);

}  // namespace fsdpctl
