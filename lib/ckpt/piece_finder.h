// PieceFinder: which pieces of a tensor may meet a box. Binary search, never all pairs.
//
// What a search needs to know of a tensor is found out by its first search, in O(pieces of the tensor). Thread-safe;
// must not outlive the checkpoint.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

class PieceFinder {
 public:
  explicit PieceFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Adjacent pieces of `t`, in catalog order, among which are all that meet `box` (tensor coordinates).
  std::span<const Piece> near(TensorIndex t, const Box& box) const;

 private:
  int64_t longest(TensorIndex t, size_t dim) const;

  const Checkpoint& checkpoint_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<TensorIndex, int64_t> longest_;
};

}  // namespace fsdpctl
