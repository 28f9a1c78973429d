// Gather: reads any box of any tensor into row-major memory, whatever pieces, strides, byte order and
// stored dtype it comes from.
//
// One Gatherer per thread: it owns read-ahead windows and a staging buffer within its share of the memory
// budget. Of replicas the first (lowest rank) is read. Requires resolved pieces. On the way it sums the CRC-64
// contributions of the *source* elements it copied (before any cast), and checks the CRC-32 of pieces that it
// read whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// What a cast did to values; all zero where nothing was cast.
struct CastCounts {
  uint64_t changed = 0;      // value differs after rounding
  uint64_t overflowed = 0;   // finite became infinite (or the largest finite, for types without infinity)
  uint64_t flushed = 0;      // non-zero became zero
};

struct GatherResult {
  uint64_t source_crc64 = 0;      // raw contribution to the tensor's CRC-64, in TensorInfo order, stored dtype
};

class Gatherer {
 public:
  // `memory`: bytes for staging and windows. `cancel` may be null.
  Gatherer(const Checkpoint& checkpoint, uint64_t memory, const std::atomic<bool>* cancel);
  ~Gatherer();
  // Bytes [begin, end) of the row-major order of `region` (a box of tensor t), in TensorInfo::dtype.
  // out.size() == end - begin. Error(damaged) names tensor, file and range.
  GatherResult read(TensorIndex t, const Box& region, uint64_t begin, uint64_t end, std::span<std::byte> out);
  const CastCounts& casts(TensorIndex t) const;     // summed over this gatherer's reads
  uint64_t bytes_read() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdpctl
