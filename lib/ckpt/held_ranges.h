// Held ranges: which bytes of a plan's files each rank writes when the ranks of a run save together. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

struct FileRange {
  size_t file = 0;                // of the plan
  uint64_t begin = 0, end = 0;    // bytes
};

// What `rank` of `ranks` writes: of tensors the elements that it holds (of replicas the lowest rank's), of all else what is in
// files that are its own. Sorted, neighbours joined. The ranges of all ranks are all bytes, each once, where pieces tile their tensors.
std::vector<FileRange> held_ranges(const Checkpoint& checkpoint, const FilePlan& plan, int rank, int ranks);

// Is a file this rank's? Holders beyond the ranks begin again with the first.
bool is_own_file(const FileLayout& file, int rank, int ranks);

// Bytes [begin, end) of the row-major order of `box`, all of them within one segment.
struct TensorStretch {
  TensorIndex tensor = kNoTensor;
  Box box;                        // valid during the call
  uint64_t begin = 0, end = 0;
};
// In the order of the file. `range` cuts no element in two.
void for_each_stretch(const FilePlan& plan, const FileRange& range, const std::function<void(const TensorStretch&)>& visit);

}  // namespace fsdpctl
