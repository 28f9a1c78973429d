// Element-wise comparison of two tensors of one shape. Used by diff.cpp only.
#pragma once

#include "lib/ckpt/diff.h"

namespace fsdpctl {

// Fills different, elements, max_abs, max_rel and first_index of `out`.
void compare_values(const Checkpoint& a, TensorIndex ta, const Checkpoint& b, TensorIndex tb, const DiffOptions& options,
                    Difference& out);

}  // namespace fsdpctl
