// PieceCrcs: checks the CRC-32 of pieces (ZIP members) that are read in several ranges, by several threads.
//
// Each range that was read is added; when a piece's ranges cover it, their combined CRC-32 must be the recorded one.
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Bytes [begin, begin + length) of the piece's bytes on disk.
struct PieceRange {
  PieceIndex piece = 0;
  uint64_t begin = 0, length = 0;
  uint32_t crc32 = 0;
};

class PieceCrcs {
 public:
  explicit PieceCrcs(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Error(damaged) where the piece is whole and differs. False where the range overlaps an earlier one: then only
  // the caller can check the piece, by reading it from end to end (see claim).
  bool add(const PieceRange& range);
  // True for the first caller: it must read the whole piece and call compare(). Ranges are ignored from then on.
  bool claim(PieceIndex piece);
  bool settled(PieceIndex piece) const;
  // Error(damaged) naming tensor, file and range if `crc` is not the recorded one.
  void compare(PieceIndex piece, uint32_t crc) const;

 private:
  struct Run {
    uint64_t begin, end;
    uint32_t crc32;
  };
  struct Row {
    bool settled = false;
    std::vector<Run> runs;   // sorted, apart from each other
  };
  const Checkpoint& checkpoint_;
  mutable std::mutex mutex_;
  std::unordered_map<PieceIndex, Row> rows_;
};

}  // namespace fsdpctl
