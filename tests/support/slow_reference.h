// Reading and writing without the engine: element by element, one thread, everything in memory. For tests of formats, and the
// reference that faster code is compared with.
#pragma once

#include <string>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

// The logical bytes of a tensor: row-major, little-endian, in the dtype it is stored in. Of replicas the
// lowest rank's counts. Requires raw pieces that cover it.
std::string slow_read(const Checkpoint& checkpoint, TensorIndex tensor);
std::string slow_sha256(const Checkpoint& checkpoint, TensorIndex tensor);

// The bytes of a file as its layout says. Throws std::runtime_error where the layout contradicts itself: gaps,
// rendered bytes of another length, boxes outside their tensor.
std::string slow_write(const Checkpoint& checkpoint, const FileLayout& layout);
// All files of a plan, below `directory`, which is created.
void slow_write(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory);

}  // namespace fsdpctl
