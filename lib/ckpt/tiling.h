// Tiling: every element of every tensor exactly once (replicas aside).
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Reports holes, overlaps and boxes outside their tensor to `sink` (Exit::damaged), naming tensor and boxes, at most 8 for
// each tensor. Pieces with equal boxes are replicas; empty pieces are fine. Linear in the pieces where nothing is wrong,
// whatever the cut; bounded where something is.
void check_tiling(const Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
