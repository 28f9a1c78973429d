// Gather: reads any box of any tensor into row-major memory, whatever pieces, strides, byte order and
// stored dtype it comes from.
//
// One Gatherer per thread: it owns read-ahead windows and a staging buffer within its share of the memory
// budget. Of replicas the first (lowest rank) is read. Requires resolved pieces that tile their tensors
// (lib/ckpt/tiling.h; here only the number of elements is checked). On the way it sums the CRC-64
// contributions of the *source* elements it copied (before any cast), and checks the CRC-32 of pieces: of those
// read range by range when the last range comes in, of those read out of order by reading them from end to end once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/cast.h"
#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/piece_crcs.h"
#include "lib/ckpt/piece_finder.h"

namespace fsdpctl {

// What the gatherers of one operation share. Thread-safe; must not outlive the checkpoint.
struct GatherContext {
  explicit GatherContext(const Checkpoint& c) : checkpoint(c), finder(c), crcs(c) {}
  const Checkpoint& checkpoint;
  PieceFinder finder;
  PieceCrcs crcs;
};

struct GatherWants {
  bool sums = true;          // false: bytes only; nothing is summed or checked
  bool crc32 = false;        // CRC-32 of the bytes in `out`
};

struct GatherResult {
  uint64_t source_crc64 = 0; // raw contribution to the tensor's CRC-64, in the stored dtype (after byte swap, conj, neg)
  uint64_t crc64 = 0;        // the same in TensorInfo::dtype; differs only after a cast
  uint32_t crc32 = 0;        // if wanted
  CastCounts casts;
};

class Gatherer {
 public:
  // `memory`: bytes for staging and windows, at least kLeastMemory are taken. `cancel` may be null.
  static constexpr uint64_t kLeastMemory = 768 << 10;
  Gatherer(GatherContext& context, uint64_t memory, const std::atomic<bool>* cancel);
  Gatherer(const Checkpoint& checkpoint, uint64_t memory, const std::atomic<bool>* cancel);   // shares with none
  ~Gatherer();

  // Bytes [begin, end) of the row-major order of `region` (a box of tensor t), in TensorInfo::dtype. begin and end
  // are multiples of the item size; out.size() == end - begin. Error(damaged) names tensor, file and range.
  GatherResult read(TensorIndex t, const Box& region, uint64_t begin, uint64_t end, std::span<std::byte> out,
                    GatherWants wants = {});

  // Ranges of pieces with a CRC-32 that were read in part since the last call (for a journal).
  std::vector<PieceRange> take_ranges();
  uint64_t bytes_read() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdpctl
