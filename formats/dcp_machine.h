// The pickle machine of `.metadata`. The general one (formats/codec/pickle_reader.h), folding the same way, takes 2.3 times as long
// and twice the memory on the 17 million opcodes of a big one; this one knows no values but cells, reads its file through a
// window and lets its CellMeaning fold everything. Names, classes and safety are judged by the same table
// (formats/codec/python_classes.h), and tests compare the two. Memory in proportion to the file; no recursion.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/dcp_cells.h"
#include "formats/dcp_names.h"
#include "lib/base/finding.h"

namespace fsdpctl {

// A file from front to back, in blocks. Behind its last byte lie kSpare zeros, so that a reader may look at a few
// bytes first and ask later whether they were there.
class ByteWindow {
 public:
  using Read = std::function<void(uint64_t offset, std::span<std::byte> out)>;
  static constexpr ptrdiff_t kSpare = 16;
  ByteWindow(Read read, uint64_t size);

  // Where the reader is in memory, and where the bytes at hand end. Both change with need().
  const char* at = nullptr;
  const char* end = nullptr;
  uint64_t size() const { return size_; }
  uint64_t position(const char* p) const { return base_ + static_cast<uint64_t>(p - buffer_.data()); }
  uint64_t left() const { return size_ - position(at); }
  // Makes n bytes contiguous from `at` on. False if the file has fewer.
  bool need(uint64_t n) { return (at <= end && static_cast<uint64_t>(end - at) >= n) || refill(n); }

 private:
  bool refill(uint64_t need);
  Read read_;
  uint64_t size_;
  uint64_t base_ = 0;                // file offset of the buffer
  std::vector<char> buffer_;
};

// What the machine's values mean. Errors that it throws get the file and the offset of the opcode.
class CellMeaning {
 public:
  static constexpr uint32_t kSizeClass = 1;          // n of the global torch.Size
  virtual ~CellMeaning() = default;
  virtual Cell global(std::string_view module, std::string_view name) = 0;      // a Cell::global
  virtual Cell call(Cell global, std::span<const Cell> args) = 0;               // called, or made by NEWOBJ
  // BUILD on an object: its fields (key, value, key, value ...), or a state that is no dict.
  virtual void build(Cell object, std::span<const Cell> fields) = 0;
  virtual void build_state(Cell object, Cell state) = 0;
  // Items (key, value, ...) that go into a dict. True: they were taken, and the dict need not have them.
  virtual bool take(Cell dict, std::span<const Cell> items) = 0;
};

class CellMachine {
 public:
  // `keep_all`: keep what a pickle may refer to twice, whatever it is. Real ones refer to strings and classes only.
  CellMachine(CellStore& store, NameTable& names, CellMeaning& meaning, ByteWindow& window, bool keep_all);
  // Runs to STOP; the one value that remains. nullopt: the pickle does refer to something that was not kept.
  std::optional<Cell> run();
  int protocol() const { return protocol_; }
  uint64_t offset() const { return window_.position(opcode_at_); }

 private:
  // An object that was made and lies at `depth` of the stack until it is built. What is made meanwhile can go then.
  struct Open {
    size_t depth = 0;
    CellStore::Mark mark;
  };

  void execute();
  void refill();
  void step(uint8_t opcode);
  void old_step(uint8_t opcode);
  // ---- stack
  size_t depth() const { return static_cast<size_t>(top_ - stack_.data()); }
  void push(Cell c) { *top_++ = c; }             // refill() has made room for one
  void grow_stack(size_t room);
  Cell pop();
  void cut(size_t depth) { top_ = stack_.data() + depth; }
  void need(size_t cells) const;
  size_t below(size_t cells) const;
  size_t pop_mark();
  std::span<const Cell> from(size_t depth) const { return {stack_.data() + depth, this->depth() - depth}; }
  void insert(size_t depth, Cell c);
  void forget_open(size_t depth) { while (!open_.empty() && open_.back().depth >= depth) open_.pop_back(); }
  // ---- opcodes
  void tuple(size_t first);
  void append(size_t first);
  void call(size_t callable);
  bool object_at_once();
  void call_tuple();
  void build();
  void build_object(std::span<const Cell> fields);
  void close();
  void string(uint64_t length);
  void skip(uint64_t length);
  void integer_bytes(uint64_t length);
  std::string line();
  template <class Integer> Integer number();
  const char* take(uint64_t n);
  // ---- memo
  static bool lasts(Cell c) {
    constexpr uint32_t kLasting = ((2U << Cell::global) - 1) | (1U << Cell::opaque);
    return ((kLasting >> c.kind()) & 1) != 0;
  }
  void memoize();
  void put_numbered(uint64_t id);
  void put(uint64_t id);
  void keep(uint64_t id, Cell c);
  Cell fetch(uint64_t id);

  CellStore& store_;
  NameTable& names_;
  CellMeaning& meaning_;
  ByteWindow& window_;
  std::vector<Cell> stack_;          // all of it is room; used up to top_
  Cell* top_;
  Cell* room_;                       // top_ may come up to here
  std::vector<size_t> marks_;
  std::vector<Open> open_;
  const char* opcode_at_;
  // Memo numbers grow: kept ones in order, those fetched last at hand. With keep_all_ in any order.
  struct Fetched {
    uint64_t id = UINT64_MAX;
    Cell cell;
  };
  static constexpr size_t kRecent = 1024;
  std::array<Fetched, kRecent> recent_;
  std::vector<uint32_t> kept_ids_;
  std::vector<Cell> kept_cells_;
  std::unordered_map<uint64_t, Cell> kept_all_;
  uint64_t memoized_ = 0;            // numbers below were put
  enum class Numbering : uint8_t { unknown, puts, memoizes } numbering_ = Numbering::unknown;
  bool keep_all_;
  bool drops_ = false;               // MEMOIZE is used, and most of what it numbers is not kept
  int protocol_ = 0;
};

}  // namespace fsdpctl
