#include "lib/ckpt/piece_crcs.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/checksum.h"

namespace fsdpctl {

bool PieceCrcs::add(const PieceRange& range) {
  if (range.length == 0) return true;
  const Piece& piece = checkpoint_.pieces[range.piece];
  const std::lock_guard lock(mutex_);
  Row& row = rows_[range.piece];
  if (row.settled) return true;
  const uint64_t end = range.begin + range.length;
  auto next = std::lower_bound(row.runs.begin(), row.runs.end(), range.begin,
                               [](const Run& run, uint64_t begin) { return run.begin < begin; });
  const bool before = next != row.runs.begin(), after = next != row.runs.end();
  if ((after && next->begin < end) || (before && std::prev(next)->end > range.begin)) return false;
  if (before && std::prev(next)->end == range.begin) {
    const auto last = std::prev(next);
    last->crc32 = crc32_combine(last->crc32, range.crc32, range.length);
    last->end = end;
  } else {
    next = std::next(row.runs.insert(next, Run{range.begin, end, range.crc32}));
  }
  if (after && next->begin == end) {
    const auto last = std::prev(next);
    last->crc32 = crc32_combine(last->crc32, next->crc32, next->end - next->begin);
    last->end = next->end;
    row.runs.erase(next);
  }
  if (row.runs.front().begin != 0 || row.runs.front().end != piece.length) return true;
  row.settled = true;
  const uint32_t crc = row.runs.front().crc32;
  row.runs = {};
  compare(range.piece, crc);
  return true;
}

bool PieceCrcs::claim(PieceIndex piece) {
  const std::lock_guard lock(mutex_);
  Row& row = rows_[piece];
  if (row.settled) return false;
  row = {true, {}};
  return true;
}

bool PieceCrcs::settled(PieceIndex piece) const {
  const std::lock_guard lock(mutex_);
  const auto row = rows_.find(piece);
  return row != rows_.end() && row->second.settled;
}

void PieceCrcs::compare(PieceIndex index, uint32_t crc) const {
  const Piece& piece = checkpoint_.pieces[index];
  if (crc == piece.crc32) return;
  throw Error(Exit::damaged, "zip member checksum mismatch")
      .at(checkpoint_.source->file(piece.source).name)
      .key(std::string(checkpoint_.tensors[piece.tensor].key))
      .range(piece.offset, piece.offset + piece.length)
      .saw(fmt::format("{:08x}", piece.crc32), fmt::format("{:08x}", crc));
}

}  // namespace fsdpctl
