// TensorTotals: what an operation has read of each tensor, added up from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "lib/ckpt/engine.h"

namespace fsdpctl {

// A part of a tensor that was read once.
struct TensorPart {
  TensorIndex tensor = kNoTensor;
  uint64_t bytes = 0;            // in TensorInfo::dtype
  uint64_t source_crc64 = 0;     // raw contributions
  uint64_t crc64 = 0;
  CastCounts casts;
};

class TensorTotals {
 public:
  explicit TensorTotals(const Checkpoint& checkpoint) : checkpoint_(checkpoint), rows_(checkpoint.tensors.size()) {}

  void add(const TensorPart& part);
  uint64_t bytes(TensorIndex t) const { return rows_[t].bytes; }
  // Finished sums of the tensors that were read whole; the others' stay 0.
  std::vector<TensorSum> sums() const;

 private:
  struct Row {
    std::atomic<uint64_t> bytes{0}, source_crc64{0}, crc64{0}, changed{0}, overflowed{0}, flushed{0};
  };
  const Checkpoint& checkpoint_;
  std::vector<Row> rows_;
};

// The whole of a tensor. Error(unsupported) for more dimensions than PyTorch has.
Box whole_region(const TensorInfo& info);

}  // namespace fsdpctl
