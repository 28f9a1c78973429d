// How a pickle writes the objects of one class: bytes that are the same in each, and between them what differs. Three quarters of
// a real `.metadata` are such objects, a million in a big one; comparing bytes is several times as fast as running their opcodes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/dcp_cells.h"
#include "formats/dcp_memo.h"

namespace fsdpctl {

// Made of an object whose fields are numbers, sizes, strings and what the memo holds: behind the fetch of its class
// `) NEWOBJ`, then `EMPTY_DICT MARK key value ... SETITEMS BUILD` or `MARK value ... TUPLE BUILD`.
class ObjectPattern {
 public:
  static constexpr ptrdiff_t kReach = 2048;      // bytes from the start that learn() and match() may look at
  static constexpr size_t kMaxFields = 16;       // cells: key, value, key ...
  static constexpr size_t kMaxHoles = 12;

  // What differs, and the cell that it goes to: a field, or a part of one that is a size.
  struct Hole {
    enum Kind : uint8_t { number, text, fetched };
    Kind kind = number;
    uint8_t before = 0;                          // fixed bytes before it
    uint8_t cell = 0;
  };
  // What match() leaves to the caller: holes whose cell he sets (a string, or what is fetched from the memo), and where it is known
  // what will be fetched, sizes, which may be among that.
  struct Late {
    enum Kind : uint8_t { text, fetched, size };
    Kind kind = text;
    uint8_t hole = 0, cell = 0;
    uint8_t memoized = 0;                        // MEMOIZEs since the one before
    bool kept = false;                           // has a MEMOIZE of its own, which is not counted there
  };
  struct Found {
    std::string_view text;
    uint32_t id = 0;
  };

  // nullopt: another kind of object.
  static std::optional<ObjectPattern> learn(const char* p, CellMemo& memo);
  // The end of an object of this pattern at p; sets the numbers among cells(), and found() of late holes. Null if there is none.
  const char* match(const char* p);

  std::span<const Late> late() const { return {late_.data(), late_count_}; }
  const Found& found(const Late& late) const { return found_[late.hole]; }
  Cell& cell(const Late& late) { return cells_[late.cell]; }
  // Keys and values. A size among them is a Cell::size of CellStore::kLent, to which cells() must be lent.
  std::span<const Cell> fields() const { return {cells_.data(), field_count_}; }
  std::span<const Cell> cells() const { return cells_; }
  bool is_tuple() const { return tuple_; }       // the state is a tuple of the fields, not a dict
  uint8_t memoized_last() const { return memoized_last_; }   // MEMOIZEs behind the last late one
  unsigned memoized() const { return memoized_; }            // all of them
  uint64_t kept() const { return kept_; }                    // those of Late::kept, as bits

 private:
  friend class PatternLearner;
  static constexpr size_t kMaxFixed = 192;
  static constexpr size_t kFirstSize = kMaxFields;   // cells from here on are parts of sizes
  std::array<char, kMaxFixed + 8> fixed_{};      // room to compare eight at a time
  std::array<Hole, kMaxHoles> holes_;
  std::array<Late, kMaxHoles> late_;
  std::array<Found, kMaxHoles> found_;           // by hole
  std::array<Cell, kMaxFields + kMaxHoles> cells_;
  size_t hole_count_ = 0, late_count_ = 0, field_count_ = 0;
  uint8_t last_ = 0;                             // fixed bytes behind the last hole
  uint8_t memoized_last_ = 0;
  unsigned memoized_ = 0;
  uint64_t kept_ = 0;
  bool tuple_ = false;
};

}  // namespace fsdpctl
