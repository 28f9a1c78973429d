#include "formats/dcp_memo.h"

#include <algorithm>
#include <string>

namespace fsdpctl {

namespace {
const Cell kNotStored(Cell::none, 1, 0);
}

CellMemo::CellMemo(uint64_t limit, size_t expected, const FetchedMemo* fetched) : fetched_(fetched), limit_(limit) {
  if (fetched != nullptr) {
    cells_.assign(fetched->slots(), kNotStored);
    return;
  }
  ids_.reserve(expected);
  cells_.reserve(expected);
}

void CellMemo::refuse(uint64_t id) {
  throw Error(Exit::unsupported, "pickle numbers its memo beyond reason").found_only(std::to_string(id));
}

void CellMemo::memoize(Cell c) {
  if (numbering_ == Numbering::puts) throw Error(Exit::unsupported, "pickle mixes two ways to number its memo");
  numbering_ = Numbering::memoizes;
  appends_ = fetched_ == nullptr;
  store(next_, c);
}

void CellMemo::put(uint64_t id, Cell c) {
  if (numbering_ == Numbering::memoizes) throw Error(Exit::unsupported, "pickle mixes two ways to number its memo");
  numbering_ = Numbering::puts;
  store(id, c);
}

void CellMemo::store(uint64_t id, Cell c) {
  if (id >= limit_) refuse(id);
  if (fetched_ != nullptr) {
    set(id, c);
    next_ = std::max(next_, id + 1);
    return;
  }
  if (id < next_) throw NotKept();                       // not in order
  if (lasts(c)) keep(id, c);
  next_ = id + 1;
}

// Names are fetched in the order in which they were stored, so it is mostly near the last one.
size_t CellMemo::position(uint64_t id) {
  constexpr size_t kNear = 4;
  const size_t end = std::min(near_ + kNear, ids_.size());
  for (size_t i = near_; i < end; ++i) {
    if (ids_[i] == id) return i;
  }
  return static_cast<size_t>(std::lower_bound(ids_.begin(), ids_.end(), id) - ids_.begin());
}

Cell CellMemo::find(uint64_t id) {
  if (fetched_ != nullptr) {
    const Cell kept = fetched_->has(id) ? cells_[fetched_->slot(id)] : kNotStored;
    if (kept != kNotStored) return kept;
  } else {
    const size_t at = position(id);
    if (at < ids_.size() && ids_[at] == id) {
      near_ = at;
      recent_[id % kRecent] = {id, cells_[at]};
      return cells_[at];
    }
    if (id < next_) throw NotKept();
  }
  throw Error(Exit::damaged, "pickle fetches a memo entry that it never stored").found_only(std::to_string(id));
}

}  // namespace fsdpctl
