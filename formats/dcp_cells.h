// Cells: what the pickle machine of `.metadata` computes with. 8 bytes each, plain data. Tuples, lists and dicts refer to
// a CellStore that is wound back whenever an object is built, so that only what was folded into rows stays, and what is held.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/arena.h"
#include "lib/base/finding.h"

namespace fsdpctl {

class Cell {
 public:
  enum Kind : uint8_t {
    none, boolean, integer,  // integer: 60 bits
    big,                     // an integer beyond that
    string, global,          // ref: number of the name or global
    tuple, size,             // n cells from pool index ref; size: torch.Size, all of them integers
    fresh_dict,              // empty, and nobody else has it
    list, dict,              // ref: number of a run; a dict's cells are key, value, key, value ...
    object,                  // n: class, ref: row
    opaque,                  // a value that does not matter here
  };
  Cell() = default;
  explicit Cell(Kind kind) : bits_(kind) {}
  Cell(Kind kind, uint32_t n, uint32_t ref) : bits_((uint64_t{ref} << 32) | (uint64_t{n} << 4) | kind) {}   // n: 28 bits
  static Cell number(int64_t v) {
    const auto shifted = static_cast<int64_t>(static_cast<uint64_t>(v) << 4);
    return shifted >> 4 == v ? Cell(static_cast<uint64_t>(shifted) | integer) : Cell(big);
  }

  Kind kind() const { return static_cast<Kind>(bits_ & 15); }
  bool is(Kind k) const { return kind() == k; }
  uint32_t n() const { return static_cast<uint32_t>(bits_) >> 4; }
  uint32_t ref() const { return static_cast<uint32_t>(bits_ >> 32); }
  int64_t value() const { return static_cast<int64_t>(bits_) >> 4; }   // of an integer
  bool operator==(const Cell&) const = default;

 private:
  explicit Cell(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = none;
};

class CellStore {
 public:
  Cell tuple(Cell::Kind kind, std::span<const Cell> cells) {
    const uint32_t begin = next(pool_.size(), cells.size());
    pool_.insert(pool_.end(), cells.begin(), cells.end());
    return Cell(kind, static_cast<uint32_t>(cells.size()), begin);
  }
  std::span<const Cell> cells(Cell tuple) const {   // valid until the next call
    const bool lent = tuple.ref() >= kLent;
    const std::span<const Cell> all = lent ? lent_ : std::span(pool_);
    const size_t begin = lent ? tuple.ref() - kLent : tuple.ref();
    if (begin + tuple.n() > all.size()) throw lost();
    return all.subspan(begin, tuple.n());
  }
  void reserve(size_t cells) { pool_.reserve(cells); }
  // Cells that somebody else keeps, for tuples whose ref is kLent and more.
  static constexpr uint32_t kLent = 0xFFFFFF00;
  void lend(std::span<const Cell> cells) { lent_ = cells; }

  Cell run(Cell::Kind kind) {
    const uint32_t first = next(parts_.size());
    parts_.push_back({0, 0, kNoPart, first});
    return Cell(kind, 0, first);
  }
  void append(Cell run, std::span<const Cell> cells);
  std::vector<Cell> contents(Cell run) const;

  struct Mark {
    size_t pool = 0, parts = 0;
  };
  Mark mark() const { return {pool_.size(), parts_.size()}; }
  void release(const Mark& mark) {                 // forgets every tuple, list and dict made since, but for those that are held
    pool_.resize(std::max(mark.pool, held_.pool));
    parts_.resize(std::max(mark.parts, held_.parts));
  }
  // Keeps a tuple, list or dict, and what it will get, although it is released. No cell that is lent.
  void hold(Cell c) {
    if (c.is(Cell::list) || c.is(Cell::dict)) holds_runs_ = true;
    held_ = mark();
  }

 private:
  // Cells of a run that lie together.
  struct Part {
    uint32_t begin = 0, count = 0;
    uint32_t next = kNoPart;
    uint32_t last = kNoPart;                       // of the first part: the run's last one
  };
  static constexpr uint32_t kNoPart = 0xFFFFFFFF;
  // Cannot happen, as nothing that was released is referred to; but bytes from a file are not where to rely on that.
  static Error lost() { return Error(Exit::damaged, "value in pickle is used after it was given away"); }
  static uint32_t next(size_t size, size_t more = 1) {
    constexpr size_t kMost = 0xFFFFFF0;            // counts must fit n
    if (more > kMost || size > kMost - more) throw Error(Exit::unsupported, "metadata holds too many values");
    return static_cast<uint32_t>(size);
  }
  std::vector<Cell> pool_;
  std::span<const Cell> lent_;
  std::vector<Part> parts_;
  Mark held_;                                      // what was made before stays
  bool holds_runs_ = false;
};

inline void CellStore::append(Cell run, std::span<const Cell> cells) {
  const uint32_t begin = next(pool_.size(), cells.size());
  if (run.ref() >= parts_.size() || parts_[run.ref()].last >= parts_.size()) throw lost();
  Part* last = &parts_[parts_[run.ref()].last];
  if (last->count > 0 && last->begin + last->count != begin) {
    const uint32_t part = next(parts_.size());
    last->next = parts_[run.ref()].last = part;
    parts_.push_back({begin, 0, kNoPart, kNoPart});
    last = &parts_.back();
  }
  if (last->count == 0) last->begin = begin;
  last->count += static_cast<uint32_t>(cells.size());
  pool_.insert(pool_.end(), cells.begin(), cells.end());
  if (holds_runs_) held_ = mark();
}

inline std::vector<Cell> CellStore::contents(Cell run) const {
  std::vector<Cell> all;
  for (uint32_t p = run.ref(); p != kNoPart; p = parts_[p].next) {
    if (p >= parts_.size() || size_t{parts_[p].begin} + parts_[p].count > pool_.size()) throw lost();
    all.insert(all.end(), pool_.begin() + parts_[p].begin, pool_.begin() + parts_[p].begin + parts_[p].count);
  }
  return all;
}

}  // namespace fsdpctl
