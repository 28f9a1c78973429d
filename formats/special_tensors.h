// Special tensors: more than bytes, a shape and strides (quantised, sparse, nested, meta, subclasses). Here they are inert objects that
// functions of torch rebuild; only a torch file can hold them.
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

bool is_special_tensor(const ObjectNode& object);

// Refuses each leaf that is or holds one, by name. True where there was one.
bool refuse_special_tensors(const Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
