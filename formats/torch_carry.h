// What a torch.save file of fsdpctl's cannot carry as Python users expect: findings for Format::can_carry.
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Values that torch.load(weights_only=True) of torch 2.13 refuses. A warning each.
void report_unloadable_values(const Checkpoint& checkpoint, FindingSink& sink);

// Tensors that share bytes with other tensors without being the same view: each becomes a copy. A warning each.
void report_copied_views(const Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
