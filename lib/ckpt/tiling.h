// Tiling: every element of every tensor exactly once (replicas aside). Sorted sweep, never all pairs.
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Reports holes, overlaps and boxes outside their tensor to `sink` (Exit::damaged), naming tensor and box. Pieces with
// equal boxes are replicas. O(pieces log pieces).
void check_tiling(const Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
