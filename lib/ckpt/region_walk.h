// The row-major memory of a box, seen from the tensor that it is a part of.
#pragma once

#include "lib/base/box.h"
#include "lib/ckpt/piece_copy.h"

namespace fsdpctl {

// A walk over a box of a tensor of `shape`: Axis::source and Axis::target lie in memory that holds the box and nothing else, `item`
// bytes per element. Pure.
Walk walk_of(const Box& box, Dims shape, uint32_t item);

// Adds elements [begin, end) of the row-major order of `region`, a box of a tensor of `shape`, to the tensor's CRC-64. `memory` begins
// with the first of them.
void add_elements(RunningCrc64& crc, const std::byte* memory, const Box& region, Dims shape, uint32_t item, uint64_t begin, uint64_t end);

}  // namespace fsdpctl
