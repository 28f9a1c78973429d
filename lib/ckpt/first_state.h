// The state that training begins with when all there is are weights.
#pragma once

#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

// The tree that lib/train/training_state.h describes, at step 0: `model` has the weights, floating ones as float32 (the masters),
// under their FQNs; `optimizer` has no moments, and one param group of AdamW with torch.optim's defaults that lists them. Optimizer and
// other state of `weights` are left out. `changes` receives what was cast, added and left out; the source is shared.
// Error(refused) where there is no model.
Checkpoint first_training_state(const Checkpoint& weights, std::vector<Change>& changes);

}  // namespace fsdpctl
