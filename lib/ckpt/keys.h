// Keys: what the tree calls each tensor. A part of Checkpoint::finish().
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Sets every tensor's key, the aliases and equal_keys by the tree. A tensor that is not in it is reported as an error (damaged), keys
// that are the same text as warnings. Error(damaged) where the tree refers to a tensor that is not there.
void name_tensors(Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
