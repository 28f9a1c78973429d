// The engine's work in the plainest way: element by element, one thread, everything in memory. What tests compare with.
#pragma once

#include <string>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

// Logical row-major little-endian bytes of a tensor. Pieces must be raw; a cast is not made.
std::string slow_read(const Checkpoint& checkpoint, TensorIndex tensor);
std::string slow_sha256(const Checkpoint& checkpoint, TensorIndex tensor);

// Writes the files of a plan below `directory`, which is created. Checks on the way that items and segments
// follow each other as lib/ckpt/layout.h promises (gtest failures).
void slow_write(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory);

}  // namespace fsdpctl
