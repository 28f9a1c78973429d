// What may be opened and looked at, but is never written as a checkpoint.
#pragma once

#include <string>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// For formats: this checkpoint is one rank's part of one. `why` says how that is known: "ShardedTensor". Shown with its facts.
void mark_rank_part(Checkpoint& checkpoint, std::string why);
bool is_rank_part(const Checkpoint& checkpoint);

// Error(refused) where keys are ambiguous; both places are named.
void check_keys_differ(const Checkpoint& checkpoint);

// The same, and Error(refused) for one rank's part.
void check_writable(const Checkpoint& checkpoint);

}  // namespace fsdpctl
