// The pickle machine of `.metadata`. The general one (formats/codec/pickle_reader.h), folding the same way, takes several times as
// long and twice the memory on the 17 million opcodes of a big one; this one knows no values but cells, reads its file through a
// window, lets its CellMeaning fold everything, and takes objects that look like those before at once (ObjectPattern). Names,
// classes and safety are judged by the same table (formats/codec/python_classes.h), and tests compare the two. Memory in
// proportion to the file; no recursion. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/dcp_arguments.h"
#include "formats/dcp_cells.h"
#include "formats/dcp_meaning.h"
#include "formats/dcp_memo.h"
#include "formats/dcp_names.h"
#include "formats/dcp_pattern.h"
#include "formats/dcp_window.h"

namespace fsdpctl {

class CellMachine {
 public:
  // `fetched`: what the pickle will fetch from its memo (null: strings and classes only, as most do).
  CellMachine(CellStore& store, NameTable& names, CellMeaning& meaning, ByteWindow& window, const FetchedMemo* fetched);
  // Runs to STOP; the one value that remains. nullopt: the pickle fetches something that was not kept, as nobody knew.
  std::optional<Cell> run();
  int protocol() const { return protocol_; }
  uint64_t offset() const { return window_.position(opcode_at_); }

 private:
  struct Mark {
    size_t depth = 0;
    CellStore::Mark store;
  };
  // An object that was made and lies at `depth` of the stack until it is built. What is made meanwhile can go then.
  struct Open {
    size_t depth = 0;
    CellStore::Mark store;
  };
  struct Patterns {                  // of one class
    std::vector<ObjectPattern> known;
    size_t latest = 0;               // that fitted
    int failures = 0;                // objects from which nothing could be learnt
  };

  void execute();
  void refill();
  void step(uint8_t opcode);
  void rare_step(uint8_t opcode);
  void old_step(uint8_t opcode);
  // ---- stack
  size_t depth() const { return static_cast<size_t>(top_ - stack_.data()); }
  void push(Cell c) { *top_++ = c; }             // refill() has made room for one
  void find_floor() { floor_ = stack_.data() + (marks_.empty() ? 0 : marks_.back().depth); }
  void grow_stack(size_t room);
  Cell pop();
  void cut(size_t depth) { top_ = stack_.data() + depth; }
  size_t below(size_t cells) const;
  Cell& top() { return stack_[below(1)]; }
  Mark pop_mark();
  std::span<const Cell> from(size_t depth) const { return {stack_.data() + depth, this->depth() - depth}; }
  void insert(size_t depth, Cell c);
  void forget_open(size_t depth) { while (!open_.empty() && open_.back().depth >= depth) open_.pop_back(); }
  // ---- opcodes
  void tuple(size_t first);
  void append(const Mark& mark);
  void append_one(size_t cells) { append({below(cells), store_.mark()}); }
  void call(size_t callable);
  void call_tuple();
  void build();
  void build_object(std::span<const Cell> fields);
  void close();
  void hold_top();
  bool whole_size();
  bool whole_object(Cell cls);
  bool learn(Patterns& patterns, const char*& end);
  bool may_skip(unsigned memoized, uint64_t kept) const;
  Cell held_size(Cell lent);
  void apply(ObjectPattern& pattern, Cell cls);
  void global();
  void stack_global();
  void string(uint64_t length);
  void skip(uint64_t length);
  void integer_bytes(uint64_t length);
  void old_integer(bool is_long);
  void old_string(bool is_unicode);
  uint64_t old_memo_number();
  // ---- bytes
  void check_bytes() const;
  void check_length(uint64_t length) const;
  std::string line();
  const char* take(uint64_t n);
  // The argument of an opcode. execute() has made sure that its bytes can be looked at; who goes on asks whether they exist.
  template <class Integer>
  Integer number() {
    const auto v = load<Integer>(window_.at);
    window_.at += sizeof v;
    return v;
  }

  CellStore& store_;
  NameTable& names_;
  CellMeaning& meaning_;
  ByteWindow& window_;
  CellMemo memo_;
  std::vector<Cell> stack_;          // all of it is room; used up to top_
  Cell* top_;
  Cell* room_;                       // top_ may come up to here
  Cell* floor_;                      // the innermost mark: what lies below is out of reach
  std::vector<Mark> marks_;
  std::vector<Open> open_;
  std::vector<Patterns> patterns_;   // by number of the global
  const char* opcode_at_;
  int protocol_ = 0;
};

}  // namespace fsdpctl
