// Renumber: leaves the tensors that a tree no longer mentions out of the catalog.
#pragma once

#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// The same checkpoint (source, arena, resolver, facts) with this tree. Tensors keep their order; `numbers`, where given, becomes the new
// number of each old one, kNoTensor where it is gone.
Checkpoint with_tree(const Checkpoint& checkpoint, Value tree, std::vector<TensorIndex>* numbers = nullptr);

// A copy whose tensors and storages have the numbers numbers[old]. Nodes that were shared stay shared. Error(damaged) where the
// tree refers to a tensor that `numbers` does not have.
Value renumbered(const Value& value, const std::vector<TensorIndex>& numbers);

}  // namespace fsdpctl
