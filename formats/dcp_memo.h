// The memo of the pickle machine of `.metadata`: what a pickle stores by number and may fetch again.
//
// A real one stores millions of values and mostly fetches only strings, classes and what functions returned, so only those are kept;
// numbers ascend, so they lie in order. Where a pickle fetches something else (one rank alone shares sizes), or numbers otherwise,
// NotKept is thrown: then it is read again, knowing what it will fetch (scan_pickle), and exactly that is kept. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "formats/codec/pickle_scan.h"
#include "formats/dcp_cells.h"

namespace fsdpctl {

class CellMemo {
 public:
  struct NotKept {};

  // `limit`: numbers from here on are refused (a pickle has fewer than bytes); `expected`: about how many will be kept. `fetched`:
  // what will be fetched, or null if nobody knows; must outlive it.
  CellMemo(uint64_t limit, size_t expected, const FetchedMemo* fetched);

  bool is_exact() const { return fetched_ != nullptr; }
  // Does MEMOIZE give numbers here? From the first memoize() on.
  bool counts() const { return numbering_ == Numbering::memoizes; }
  // May MEMOIZE be append()?
  bool appends() const { return appends_; }
  // Will what MEMOIZE, or PUT with this number, stores now be fetched, so that it must last?
  bool wants_next() const { return wants(next_); }
  bool wants(uint64_t id) const { return fetched_ != nullptr && fetched_->has(id); }
  // Of the next `count` (at most 63) numbers, those that will be fetched, as bits.
  uint64_t wanted(unsigned count) const { return fetched_ == nullptr ? 0 : fetched_->bits(next_) & ((uint64_t{1} << count) - 1); }
  static bool lasts(Cell c) {
    constexpr uint32_t kLasting = ((2U << Cell::global) - 1) | (1U << Cell::opaque);
    return ((kLasting >> c.kind()) & 1) != 0;
  }

  void append(Cell c) {                                  // MEMOIZE, where counts()
    if (fetched_ != nullptr) set(next_, c);
    else if (lasts(c)) keep(next_, c);
    ++next_;
  }
  void skip(uint64_t count) { next_ += count; }          // of values that do not last, or nobody fetches
  void memoize(Cell c);                                  // MEMOIZE, anywhere
  void put(uint64_t id, Cell c);                         // PUT and its relatives

  Cell get(uint64_t id) {
    const Fetched& recent = recent_[id % kRecent];
    return recent.id == id ? recent.cell : find(id);
  }

 private:
  // MEMOIZE numbers what it stores by how many are stored, so a pickle that also uses PUT needs all of them counted.
  enum class Numbering : uint8_t { unknown, puts, memoizes };
  struct Fetched {
    uint64_t id = UINT64_MAX;
    Cell cell;
  };
  static constexpr size_t kRecent = 1024;

  void store(uint64_t id, Cell c);
  void set(uint64_t id, Cell c) {
    if (fetched_->has(id)) cells_[fetched_->slot(id)] = c;
  }
  void keep(uint64_t id, Cell c) {
    if (id > UINT32_MAX) refuse(id);
    ids_.push_back(static_cast<uint32_t>(id));
    cells_.push_back(c);
  }
  [[noreturn]] static void refuse(uint64_t id);
  Cell find(uint64_t id);
  size_t position(uint64_t id);

  std::array<Fetched, kRecent> recent_;                  // what was fetched last, by number
  std::vector<uint32_t> ids_;                            // of what is kept, ascending
  std::vector<Cell> cells_;
  size_t near_ = 0;                                      // where find() was last
  const FetchedMemo* fetched_;                           // where known: the slots of cells_; ids_ is not used then
  uint64_t next_ = 0;                                    // numbers below were stored
  uint64_t limit_;
  Numbering numbering_ = Numbering::unknown;
  bool appends_ = false;
};

}  // namespace fsdpctl
