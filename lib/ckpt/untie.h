// Untie: for formats that cannot say that two names are one tensor.
#pragma once

#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

// The same checkpoint in which every name has a tensor of its own: aliases become tensors over the same pieces. Each is listed
// ("copied"); where the tensor was cast, so is the alias. Tensors inside inert objects stay as they are. Pure.
Checkpoint untied(const Checkpoint& checkpoint, std::vector<Change>& changes);

}  // namespace fsdpctl
