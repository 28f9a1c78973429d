// From boxes of any number of dimensions to rows of a restore table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/table.h"

namespace fsdpctl::kernels {

// One side of a move: where element (0, 0, ...) lies, and the strides of the dimensions in elements.
struct RestoreSource {
  const void* first;   // of any alignment
  FloatType type;
  std::span<const uint64_t> stride;
};
struct RestoreTarget {
  void* first;
  FloatType type;
  std::span<const uint64_t> stride;
};

// Appends the rows that move a box of `size`: one, after dimensions that follow each other in both memories are merged, if at
// most four remain; else one for each index of the outer ones. None for an empty box. Requires as many strides as sizes.
void append_box(std::vector<RestoreEntry>& table, std::span<const uint64_t> size, const RestoreSource& source,
                const RestoreTarget& target);

}  // namespace fsdpctl::kernels
