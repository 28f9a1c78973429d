// Placement: how the elements of tensors are spread over ranks. (Format is how bytes lie on disk.)
//
// One rule per tensor, as PyTorch has it: Shard(d) cuts dimension d by torch.chunk (FSDP2's Shard(0),
// shard_placement_fn's Shard(d)); everything else is one copy on one rank. Boxes are computed, never stored:
// 1,024 ranks x 1,000 tensors cost 16 bytes per tensor. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// How a stored tensor's pieces cut it.
struct StoredPlacement {
  enum class Kind : uint8_t {
    whole,        // one piece (replicas of it count once)
    shard,        // cut along exactly one dimension
    flat,         // consecutive flat ranges that are no shard of one dimension
    grid,         // cut along several dimensions (FSDP + TP)
    irregular,
  };
  Kind kind = Kind::whole;
  int dim = -1;                   // shard
  uint64_t cut_dims = 0;          // shard, grid: bit d is set where dimension d is cut (dimensions from 64 on are not counted)
  uint32_t pieces = 1;            // distinct boxes that hold elements
  uint32_t replicas = 1;          // of each, rounded down
};
StoredPlacement stored_placement(const Checkpoint& checkpoint, TensorIndex tensor);
std::string placement_text(const StoredPlacement& placement);   // "Shard(0)", "Replicate", "Shard(0) x Shard(1)"

// Where tensors go. One row per tensor of the checkpoint.
class TargetPlacement {
 public:
  struct Row {
    int16_t dim = -1;             // Shard(dim), or -1: one copy
    int32_t holder = 0;           // rank of the one copy
  };
  TargetPlacement(int64_t world_size, std::vector<Row> rows) : world_size_(world_size), rows_(std::move(rows)) {}

  int64_t world_size() const { return world_size_; }
  const Row& row(TensorIndex t) const { return rows_[t]; }
  bool holds(const Checkpoint& checkpoint, TensorIndex t, int64_t rank) const;   // Shard: every rank, empty pieces too
  // The box of `rank`; offset and size must have room for the tensor's dims. Requires holds().
  void box(const Checkpoint& checkpoint, TensorIndex t, int64_t rank, std::span<int64_t> offset, std::span<int64_t> size) const;

 private:
  int64_t world_size_;
  std::vector<Row> rows_;
};

// The rule of `reshard` and `convert`: parameters and optimizer fields of a parameter's shape are cut by
// Shard(d) if the source cuts exactly one dimension d, else Shard(0); buffers, 0-d and empty tensors and other state:
// one copy, on the rank with the fewest bytes so far (ties: the lowest), in catalog order. World size 1: one copy of all.
//
// No format records which model tensors are buffers. A tensor of the model counts as a parameter if an optimizer names it or
// it was saved as one, or if it is stored in pieces. Of the others, integers and booleans are buffers, and so are those stored whole in a
// checkpoint that is otherwise cut, and 1-d ones where an optimizer names its parameters. A wrong guess moves bytes to other
// ranks; it never changes them.
// Error(usage) for world sizes beyond kMaxWorldSize.
TargetPlacement place(const Checkpoint& checkpoint, int64_t world_size);
inline constexpr int64_t kMaxWorldSize = 131072;

}  // namespace fsdpctl
