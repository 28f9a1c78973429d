// Pieces in the order of their bytes on disk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// By source, then offset. `PiecePointer`: Piece* or const Piece*. Catalogs mostly name a file's pieces in this order already,
// one file mixed with the other: then nothing is compared more than once.
template <class PiecePointer>
void sort_by_place(std::vector<PiecePointer>& pieces) {
  std::vector<size_t> ends;               // of each source's pieces
  for (const Piece* p : pieces) {
    if (p->source >= ends.size()) ends.resize(size_t{p->source} + 1);
    ++ends[p->source];
  }
  size_t before = 0;
  for (size_t& end : ends) before += std::exchange(end, before);
  std::vector<PiecePointer> sorted(pieces.size());
  for (PiecePointer p : pieces) sorted[ends[p->source]++] = p;
  const auto earlier = [](const Piece* a, const Piece* b) { return a->offset < b->offset; };
  auto begin = sorted.begin();
  for (const size_t end : ends) {
    const auto stop = sorted.begin() + static_cast<ptrdiff_t>(end);
    if (!std::is_sorted(begin, stop, earlier)) std::sort(begin, stop, earlier);
    begin = stop;
  }
  pieces = std::move(sorted);
}

}  // namespace fsdpctl
