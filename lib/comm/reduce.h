// Sums (and maxima, ...) over ranks, element by element in rank order: the arithmetic of the collectives on the CPU.
#pragma once

#include <cstddef>
#include <span>

#include "lib/comm/communicator.h"

namespace fsdpctl {

// out[i] = parts[0][i] + parts[1][i] + ... where each part has out.count elements of `in`. 16-bit floating dtypes are
// summed in float32; `out` is of `in`'s dtype, or float32 for those. `out` may be one of the parts. Requires
// can_reduce(in, reduction).
void reduce_in_rank_order(DType in, std::span<const void* const> parts, Reduction reduction, MutableElements out);

}  // namespace fsdpctl
