// PieceFinder: which pieces of a tensor may meet a box. Binary search, never all pairs.
//
// Built once for a checkpoint in O(pieces), 8 bytes per tensor; const and thread-safe afterwards. Must not outlive
// the checkpoint.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

class PieceFinder {
 public:
  explicit PieceFinder(const Checkpoint& checkpoint);

  // Adjacent pieces of `t`, in catalog order, among which are all that meet `box` (tensor coordinates).
  std::span<const Piece> near(TensorIndex t, const Box& box) const;

 private:
  const Checkpoint& checkpoint_;
  std::vector<int64_t> longest_;   // per tensor: largest extent of a piece along the dimension that sorts them
};

}  // namespace fsdpctl
