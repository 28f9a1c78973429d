// The memo of the pickle machine of `.metadata`: what a pickle stores by number and may fetch again.
//
// A real one stores millions of values and fetches only strings, classes and what functions returned, so only those are kept; numbers
// ascend, so they lie in order. Where a pickle fetches something else, or numbers otherwise, NotKept is thrown: then it must be
// read again with `keep_all`. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "formats/dcp_cells.h"

namespace fsdpctl {

class CellMemo {
 public:
  struct NotKept {};

  // `limit`: numbers from here on are refused (a pickle has fewer than bytes); `expected`: about how many will be kept.
  CellMemo(uint64_t limit, size_t expected, bool keep_all);

  bool keeps_all() const { return keep_all_; }
  // May values that do not last be skipped with append()? From the first memoize() on, if not all are kept.
  bool appends() const { return appends_; }
  uint64_t next() const { return next_; }                // the number that append() gives
  static bool lasts(Cell c) {
    constexpr uint32_t kLasting = ((2U << Cell::global) - 1) | (1U << Cell::opaque);
    return ((kLasting >> c.kind()) & 1) != 0;
  }

  void append(Cell c) {                                  // MEMOIZE, where appends()
    if (lasts(c)) keep(next_, c);
    ++next_;
  }
  void skip(uint64_t count) { next_ += count; }          // of values that do not last
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
  std::unordered_map<uint64_t, Cell> all_;               // with keep_all, instead
  uint64_t next_ = 0;                                    // numbers below were stored
  uint64_t limit_;
  Numbering numbering_ = Numbering::unknown;
  bool keep_all_;
  bool appends_ = false;
};

}  // namespace fsdpctl
