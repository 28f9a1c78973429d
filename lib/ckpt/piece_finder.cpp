#include "lib/ckpt/piece_finder.h"

#include <algorithm>

namespace fsdpctl {
namespace {

constexpr size_t kFew = 8;   // not worth a search

// Pieces are sorted by offset, dimension after dimension: the first one in which the ends differ sorts them all.
// The number of dimensions where all offsets are equal.
size_t sorting_dim(std::span<const Piece> pieces) {
  const Dims first = pieces.front().box.offset, last = pieces.back().box.offset;
  size_t d = 0;
  while (d < first.size() && first[d] == last[d]) ++d;
  return d;
}

}  // namespace

std::span<const Piece> PieceFinder::near(TensorIndex t, const Box& box) const {
  const std::span<const Piece> pieces = checkpoint_.pieces_of(t);
  if (pieces.size() <= kFew) return pieces;
  const size_t d = sorting_dim(pieces);
  if (d == box.offset.size()) return pieces;   // replicas of one box
  const auto before = [d](const Piece& piece, int64_t offset) { return piece.box.offset[d] < offset; };
  const auto first = std::lower_bound(pieces.begin(), pieces.end(), box.offset[d] - longest(t, d) + 1, before);
  const auto last = std::lower_bound(first, pieces.end(), box.offset[d] + box.size[d], before);
  return {first, last};
}

// The largest extent of a piece along the dimension that sorts them.
int64_t PieceFinder::longest(TensorIndex t, size_t dim) const {
  const std::lock_guard lock(mutex_);
  const auto [row, is_new] = longest_.try_emplace(t, 0);
  if (is_new) {
    for (const Piece& piece : checkpoint_.pieces_of(t)) row->second = std::max(row->second, piece.box.size[dim]);
  }
  return row->second;
}

}  // namespace fsdpctl
