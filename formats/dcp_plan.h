// What a distributed checkpoint will consist of: which rank writes which item, and where it lies in the rank's file.
//
// As PyTorch's planner does it: a sharded tensor has a chunk on each rank that holds elements, and one empty chunk where a rank
// holds none; everything else is one item on one rank; byte items come first in a file; a rank without items has an
// empty file. Tied parameters are stored once and named twice. 12 bytes for each chunk; immutable, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "formats/codec/torch_archive.h"
#include "formats/dcp_flatten.h"
#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/placement.h"

namespace fsdpctl {

inline constexpr uint32_t kNoDcpName = 0xFFFFFFFF;

// A tensor with all its names. Chunk i lies on rank `first_rank` + i.
struct DcpPlannedTensor {
  TensorIndex tensor = kNoTensor;
  uint32_t first_name = 0, last_name = 0;   // leaves; linked by DcpPlan::next_name
  uint32_t chunks = 1;
  int32_t first_rank = 0;
  uint64_t full = 0, last = 0, empty = 0;   // bytes of the items of full chunks, the last one with elements, the empty one
  uint32_t filled = 1;                      // chunks with elements
  uint64_t item_size(uint32_t chunk) const { return chunk >= filled ? empty : chunk + 1 == filled ? last : full; }
};

// A value that is stored as a whole, as a torch.save archive.
struct DcpPlannedValue {
  uint32_t name = 0;
  uint64_t size = 0;
  std::unique_ptr<TorchArchiveLayout> archive;   // kept where it is big or holds tensors; others are made anew when rendered
};

class DcpPlan {
 public:
  DcpPlan(const Checkpoint& checkpoint, const TargetPlacement& placement);

  // The items of one rank's file, in order: values, then tensors.
  struct Rank {
    std::vector<uint32_t> values, tensors;       // numbers below
    std::vector<uint64_t> offsets;               // of each item, and the end
  };
  const Checkpoint& checkpoint() const { return checkpoint_; }
  int64_t world_size() const { return placement_.world_size(); }
  const Rank& rank(int64_t r) const { return ranks_[static_cast<size_t>(r)]; }
  const DcpFlatState& state() const { return state_; }
  const DcpPlannedTensor& tensor(uint32_t t) const { return tensors_[t]; }
  const DcpPlannedValue& value(uint32_t v) const { return values_[v]; }
  // Of a leaf: the planned tensor, or kNoDcpName for a value.
  uint32_t tensor_of(uint32_t name) const { return tensor_of_name_[name]; }
  uint32_t next_name(uint32_t name) const { return next_name_[name]; }   // of the same tensor; kNoDcpName after the last
  void box(const DcpPlannedTensor& tensor, uint32_t chunk, std::span<int64_t> offset, std::span<int64_t> size) const;
  TorchArchiveLayout make_archive(const DcpPlannedValue& value) const;

 private:
  void add_tensor(TensorIndex t, uint32_t name);
  uint64_t item_size(const DcpPlannedTensor& tensor, uint32_t chunk) const;
  void add_value(uint32_t name);
  void give_tensors();
  void give_values();
  void place_items(Rank& rank, int64_t number) const;

  const Checkpoint& checkpoint_;
  TargetPlacement placement_;
  DcpFlatState state_;
  std::vector<DcpPlannedTensor> tensors_;
  std::vector<DcpPlannedValue> values_;
  std::vector<uint32_t> tensor_of_name_, next_name_;
  std::vector<Rank> ranks_;
};

}  // namespace fsdpctl
