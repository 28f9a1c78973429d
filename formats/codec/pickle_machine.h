// The inside of read_pickle: the stack machine, split over pickle_reader.cpp (opcodes), pickle_values.cpp (literals
// and containers) and pickle_objects.cpp (globals, calls, state).
//
// Rules that make one pass safe and fast. A value that goes into another is closed: its node may not change any more.
// Real picklers finish a value before they use it, except where it contains itself; so cycles cannot be built, and the
// nesting below a node is known when it is closed. Values fetched from the memo are borrowed while they lie on the
// stack, empty containers are tokens until something needs the node, and arguments that are called at once never become
// a tuple: most objects of big streams cost no allocation.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_reader.h"
#include "formats/codec/pickle_scan.h"
#include "formats/codec/python_classes.h"

namespace fsdpctl::pickle {

// An inert object while it is read.
struct OpenObject : ObjectNode {
  bool foreign = false;              // of the user's own code: what it gives when called is inert too
  uint32_t slot = UINT32_MAX;        // where the memo holds it
};

// A tree written out: shared values counted each time they are reached.
struct TreeSize {
  uint64_t values = 0;
  uint64_t text = 0;                 // bytes of strings, bytes and arrays, and of the path to each value
};

// Limits that only the finished tree can break: its size, and keys that occur twice or cannot be keys.
// Error(unsupported) or Error(damaged).
TreeSize check_tree(const Value& tree, uint32_t depth, const TreeSize& limit);

class Machine {
 public:
  Machine(Bytes stream, PickleHandler& handler, const std::string& name, uint64_t base, FindingSink& sink,
          const PickleLimits& limits);
  PickleResult run();

 private:
  // A global that the stream named, once for all its uses.
  struct Known {
    PythonName python;
    Value value;                     // Kind::global, or the constant that it stands for
  };
  using Args = std::span<const Value>;

  // ---- opcodes
  Value execute();                   // all of them; the value that STOP returns
  void step(uint8_t op);             // those that are rare in big streams
  void old_step(uint8_t op);         // protocols 0 and 1
  Value stop();
  Error error(Exit code, const char* what) const;

  // ---- arguments and literals
  template <class T> T number() {
    T value;
    std::memcpy(&value, p_, sizeof value);
    p_ += sizeof value;
    return value;
  }
  std::string_view text(uint64_t length);
  std::string_view line();
  Value string(std::string_view utf8) const;
  Value python2_string(std::string_view raw) const;
  Value big_endian_real();
  Value integer_bytes(uint64_t length);
  Value integer_line();
  Value long_line();
  Value real_line();
  Value escaped_string();
  Value escaped_unicode();

  // ---- the stack
  void push(Value&& value) { stack_.push_back(std::move(value)); }
  void need(size_t count) const {    // values above the last mark
    if (stack_.size() - fence_ < count) underflow();
  }
  [[noreturn]] void underflow() const;
  Value pop();
  void drop(size_t first) {
    while (stack_.size() > first) stack_.pop_back();
  }
  void mark() {
    if (marks_.size() >= limits_.depth) too_deep();
    marks_.push_back(stack_.size());
    fence_ = stack_.size();
  }
  size_t pop_mark() {                // position of the first value above it
    if (marks_.empty()) underflow();
    const size_t first = fence_;
    marks_.pop_back();
    fence_ = marks_.empty() ? 0 : marks_.back();
    return first;
  }
  [[noreturn]] void too_deep() const;

  // ---- the memo
  void put(uint64_t id) {
    if (scan_.fetched.has(id)) store(id);
  }
  void memoize() {
    if (memoized_++ == next_fetched_) store_memoized();
  }
  void store_memoized();
  void store(uint64_t id);
  void fetch(uint64_t id) {
    const Value& value = memo_[scan_.fetched.slot(id)];
    if (value.is(Kind::token) && value.token_type() == kNotStoredType) never_stored();
    stack_.push_back(Value::borrow(value));
  }
  [[noreturn]] void never_stored() const;
  void old_memo(bool is_put);        // PUT and GET, with decimal numbers
  // Passes over what only numbers the memo; `memoized` counts.
  const uint8_t* skip_unfetched_puts(const uint8_t* p, uint64_t& memoized) const {
    while (*p == kMemoize && memoized != next_fetched_) {
      ++memoized;
      ++p;
    }
    return *p == kBinPut || *p == kLongBinPut || *p == kFrame ? skip_numbered_puts(p, memoized) : p;
  }
  const uint8_t* skip_numbered_puts(const uint8_t* p, uint64_t& memoized) const;

  // ---- values that go into others
  // Types of tokens that never leave the machine; those of handlers are below.
  static constexpr uint32_t kFreshType = 0x80000000, kNotStoredType = 0x80000001;

  static bool has_children(Kind kind) {
    return (kind >= Kind::list && kind <= Kind::default_dict) || kind == Kind::tensor || kind == Kind::object;
  }
  // An empty container without a node.
  static Value fresh(Kind kind) { return Value::token(kFreshType, static_cast<uint32_t>(kind)); }
  static bool is_fresh(const Value& value) { return value.is(Kind::token) && value.token_type() == kFreshType; }
  static void make(Value& value) {             // gives a fresh container its node
    if (is_fresh(value)) make_node(value);
  }
  static void make_node(Value& value);
  static uint32_t height_over(const Value& value) {   // that a holder of it has at least
    if (value.kind() < Kind::list) return 0;
    return has_children(value.kind()) && value.identity() != nullptr ? value.node<ValueNode>().height + 1u : 0;
  }
  uint32_t close(Value& value) {               // it may not change any more; height_over() it
    if (value.kind() < Kind::list) return 0;   // most
    make(value);
    if (!has_children(value.kind()) || value.identity() == nullptr) return 0;
    ValueNode* node = value.mutable_base();
    node->closed = true;
    return node->height + 1u;
  }
  uint32_t settle(Value& value) {              // close, and count what is borrowed
    const uint32_t height = close(value);
    value.keep();
    return height;
  }
  uint32_t settle_from(size_t first);          // all from `first` to the top
  void raise(Value& holder, uint32_t height) const;
  Value& open(Value& value);                   // about to change: must not be closed
  Value sequence(Kind kind, size_t first);     // takes all from `first` to the top
  Value size(size_t first);                    // torch.Size of integers, in a used node where there is one
  void drop_fields(size_t first);              // keeps the nodes of their sizes
  void tuple(size_t first);                    // TUPLE*, and what follows at once
  bool size_at_once(size_t first, const uint8_t* next, uint64_t memoized);
  void append(size_t target, bool to_set);     // all above `target`
  void set_items(size_t target);

  // ---- globals, calls, state
  void global();
  void stack_global();
  Known& know(std::string_view module, std::string_view name);
  void warn(std::string_view module, std::string_view name);
  const Known& known(const Value& global);
  bool is_role(const Value& value, PythonRole role);
  bool is_foreign(const Value& value);
  // Calls what lies at `callable` and puts the result in its place; what is above it goes.
  void call(size_t callable, Args args, bool newobj, const Value& kwargs);
  Value call_global(const Value& callable, Args args, bool newobj, const Value& kwargs);
  Value call_known(const Value& callable, PythonRole role, Args args, bool newobj, const Value& kwargs);
  Value call_object(const Value& callable, Args args, bool newobj, const Value& kwargs);
  Value inert(const Value& callable, Args args, bool newobj, const Value& kwargs, bool foreign) const;
  Value get_attribute(const Value& callable, Args args);
  Value reconstruct(const Value& callable, Args args);
  Value newobj_by_name(Args args, bool with_kwargs);
  void reduce(bool newobj);
  void newobj_ex();
  void call_marked(bool names_class);          // INST, else OBJ
  void persistent(Value id);
  void build();
  bool build_at_once(size_t target);           // a fresh dict's fields, where BUILD follows; `target`: the dict
  void default_build(Value& object, Value state);
  void replace(Value& object, Value now);
  Error unsafe(const Value& global) const;

  const uint8_t* begin_;
  const uint8_t* p_;
  const uint8_t* at_;                // the opcode at work
  PickleHandler& handler_;
  const std::string& name_;
  uint64_t base_;
  FindingSink& sink_;
  const PickleLimits& limits_;

  PickleScan scan_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  size_t fence_ = 0;                 // stack position of the last mark
  std::vector<Value> memo_;          // by slot; not_stored() at first
  std::vector<Value> retired_;       // were in the memo, may be borrowed still
  std::vector<Value> fields_;        // scratch of build()
  std::vector<Value> used_sizes_;    // nodes that nothing refers to any more
  uint64_t memoized_ = 0;            // MEMOIZE opcodes so far
  uint64_t next_fetched_ = 0;        // the first number from there on that is fetched
  std::unordered_map<std::string, uint32_t> known_ids_;   // "module\nname" -> reader_id, 1 + index in known_
  std::vector<Known> known_;
  std::unordered_set<std::string> warned_;
};

}  // namespace fsdpctl::pickle
