// Resolving where only some pieces are read; for all of them see checkpoint.h.
#pragma once

#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Makes these pieces of `checkpoint` raw, as resolve_pieces() does with all.
void resolve_some(Checkpoint& checkpoint, std::vector<Piece*> pieces, int threads, FindingSink& sink);

}  // namespace fsdpctl
