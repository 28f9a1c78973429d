// RunningCrc64: the raw CRC-64 contribution of runs of one tensor, added in any order.
//
// Cheap where runs follow each other (one chain) or lie at equal distances (one multiplication per run, Horner's
// rule); any other step costs a multiplication per four bits of the distance. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>

#include "lib/base/checksum.h"
#include "lib/ckpt/strided_copy.h"

namespace fsdpctl {

class RunningCrc64 {
 public:
  explicit RunningCrc64(uint64_t total_bytes) : total_(total_bytes) {}   // of the whole tensor

  void add(uint64_t begin, Bytes run);   // run: bytes [begin, begin + run.size()) of the tensor
  uint64_t contribution();               // of everything added so far

 private:
  uint64_t shift(uint64_t raw, uint64_t distance);
  void close();

  struct Known {
    uint64_t distance = 0;
    Crc64Step step{0};
  };
  uint64_t total_;
  uint64_t end_ = 0;         // where the chain ends
  uint64_t chain_ = 0;       // raw CRC of the chain, up to end_
  uint64_t closed_ = 0;      // contributions of finished chains
  std::array<Known, 4> known_;
  size_t next_ = 0;
};

// Adds the elements of a walk that lie in `memory`, axis.source apart, and at axis.logical in the tensor, from byte
// `logical` on. Runs are what both have without a gap.
void add_runs(RunningCrc64& crc, const std::byte* memory, std::span<const Axis> axes, uint32_t item, uint64_t logical);

}  // namespace fsdpctl
