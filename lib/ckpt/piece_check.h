// Whether a piece can be read safely: its box lies inside its tensor, its bytes inside their file. Private to lib/ckpt.
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// A view may show each byte of its storage at most so often (torch.expand): beyond that it is meant to fill a disk.
inline constexpr uint64_t kMaxViewRepeats = uint64_t{1} << 20;

// Reports what is wrong and returns false. Fills in the length of a raw piece that does not say its own.
bool check_piece(const Checkpoint& checkpoint, Piece& piece, FindingSink& sink);

}  // namespace fsdpctl
