// Integer ids: distributed checkpoints know no keys but text, so the ids of parameters that an optimizer's state is keyed by come out
// of them as "0", "1" ..., while param_groups still list 0, 1 ...; torch.optim then finds no state for them, and says nothing.
#pragma once

#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

// For formats that hold keys of all kinds. In optimizers whose groups list integers, where every key of `state` prints as one of them,
// these keys are integers again; each optimizer is listed ("key"). Else the same checkpoint. No path changes. Pure.
Checkpoint with_integer_ids(const Checkpoint& checkpoint, std::vector<Change>& changes);

}  // namespace fsdpctl
