#include "formats/dcp_machine.h"

#include <algorithm>
#include <cstring>

#include "formats/dcp_arguments.h"
#include "formats/dcp_machine_errors.h"
#include "lib/base/utf8.h"

namespace fsdpctl {

using namespace pickle;

namespace {

constexpr uint64_t kLookAhead = uint64_t{64} << 10;
constexpr size_t kStackRoom = 1024;

Error cut_short(const ByteWindow& window) {
  return damaged_pickle("metadata is cut short", "end of file at " + std::to_string(window.size()));
}

// About how many strings and classes a file of this size holds.
size_t expected_memos(uint64_t size) { return static_cast<size_t>(size / 80); }

}  // namespace

CellMachine::CellMachine(CellStore& store, NameTable& names, CellMeaning& meaning, ByteWindow& window, const FetchedMemo* fetched)
    : store_(store), names_(names), meaning_(meaning), window_(window), memo_(window.size(), expected_memos(window.size()), fetched),
      stack_(kStackRoom), top_(stack_.data()), room_(top_ + stack_.size()), floor_(top_), opcode_at_(window.at) {}

std::optional<Cell> CellMachine::run() {
  try {
    execute();
  } catch (const CellMemo::NotKept&) {
    return std::nullopt;
  }
  if (depth() != 1) throw damaged_pickle("pickle ends with more or less than one value");
  return stack_[0];
}

// The opcodes that big files consist of, on local copies of the two pointers that each of them moves.
void CellMachine::execute() {
  const char* p = window_.at;
  Cell* top = top_;
  const auto leave = [&] { window_.at = p, top_ = top; };
  const auto enter = [&] { p = window_.at, top = top_; };
  for (;;) {
    if (window_.end - p < ByteWindow::kSpare || top == room_) {
      leave();
      refill();
      enter();
    }
    opcode_at_ = p;
    const uint8_t opcode = byte_at(p++);
    switch (opcode) {
      case kMemoize:
        if (memo_.appends() && top != floor_) {
          memo_.append(top[-1]);
          break;
        }
        leave();
        check_bytes();
        if (memo_.wants_next()) hold_top();
        memo_.memoize(this->top());
        break;
      case kBinGet: case kLongBinGet: {
        const uint32_t id = opcode == kBinGet ? byte_at(p) : load<uint32_t>(p);
        p += opcode == kBinGet ? 1 : 4;
        const Cell c = memo_.get(id);
        if (c.is(Cell::global) && c.n() != CellMeaning::kOther) {
          leave();
          if (!(c.n() == CellMeaning::kSizeClass ? whole_size() : whole_object(c))) push(c);
          enter();
        } else {
          *top++ = c;
        }
        break;
      }
      case kMark:
        marks_.push_back({static_cast<size_t>(top - stack_.data()), store_.mark()});
        floor_ = top;
        break;
      case kBinInt1: *top++ = Cell::number(byte_at(p)), p += 1; break;
      case kBinInt2: *top++ = Cell::number(load<uint16_t>(p)), p += 2; break;
      case kBinInt: *top++ = Cell::number(load<int32_t>(p)), p += 4; break;
      case kNone: *top++ = Cell(Cell::none); break;
      case kNewTrue: *top++ = Cell(Cell::boolean, 0, 1); break;
      case kNewFalse: *top++ = Cell(Cell::boolean); break;
      case kEmptyTuple: *top++ = Cell(Cell::tuple); break;
      case kStop:
        leave();
        return check_bytes();
      default:
        leave();
        step(opcode);
        enter();
    }
  }
}

// Bytes behind the end may have been looked at; what they would do must not happen.
void CellMachine::check_bytes() const {
  if (window_.at > window_.end) throw cut_short(window_);
}

// Near the end of the window, or with a full stack.
void CellMachine::refill() {
  check_bytes();
  window_.need(std::min(window_.left(), kLookAhead));
  opcode_at_ = window_.at;
  if (window_.at == window_.end) throw cut_short(window_);
  if (top_ == room_) grow_stack(1);
}

void CellMachine::step(uint8_t opcode) {
  switch (opcode) {
    case kTuple1: return tuple(below(1));
    case kTuple2: return tuple(below(2));
    case kTuple3: return tuple(below(3));
    case kTuple: return tuple(pop_mark().depth);
    case kEmptyDict: return push(Cell(Cell::fresh_dict));
    case kEmptyList: return push(store_.run(Cell::list));
    case kSetItems: case kAppends: return append(pop_mark());
    case kSetItem: return append_one(2);
    case kAppend: return append_one(1);
    case kReduce: case kNewObj: return call_tuple();
    case kBuild: return build();
    case kShortBinUnicode: return string(number<uint8_t>());
    case kBinUnicode: return string(number<uint32_t>());
    case kBinPut: case kLongBinPut: {
      const uint64_t id = opcode == kBinPut ? number<uint8_t>() : number<uint32_t>();
      check_bytes();
      if (memo_.wants(id)) hold_top();
      return memo_.put(id, top());
    }
    case kLong1: return integer_bytes(number<uint8_t>());
    case kGlobal: return global();
    case kStackGlobal: return stack_global();
    case kFrame: number<uint64_t>(); return;
    case kPop:   // of a mark, where one is on top
      if (top_ == floor_ && !marks_.empty()) pop_mark();
      else pop();
      return;
    default: return rare_step(opcode);
  }
}

// ---- bytes

const char* CellMachine::take(uint64_t n) {
  const bool moves = window_.at <= window_.end && static_cast<uint64_t>(window_.end - window_.at) < n;
  if (!window_.need(n)) throw cut_short(window_);
  if (moves) opcode_at_ = window_.at;
  const char* bytes = window_.at;
  window_.at += n;
  return bytes;
}

// The length of what follows, which is checked against what is there: nobody takes memory for more.
void CellMachine::check_length(uint64_t length) const {
  if (window_.at > window_.end || length > window_.left()) throw cut_short(window_);
}

void CellMachine::string(uint64_t length) {
  check_length(length);
  if (length > kMaxPickleString) throw unsupported_pickle("metadata holds a string of more than a megabyte");
  const std::string_view text(take(length), length);
  if (!is_utf8(text, true)) throw damaged_pickle("string in pickle is not UTF-8");
  push(Cell(Cell::string, 0, names_.add(text)));
}

// ---- stack

void CellMachine::grow_stack(size_t room) {
  const size_t used = depth();
  stack_.resize(std::max(2 * stack_.size(), used + room + kStackRoom));
  top_ = stack_.data() + used;
  room_ = stack_.data() + stack_.size();
  find_floor();
}

size_t CellMachine::below(size_t cells) const {
  if (static_cast<size_t>(top_ - floor_) < cells) throw damaged_pickle("pickle stack underflow");
  return depth() - cells;
}

Cell CellMachine::pop() {
  below(1);
  return *--top_;
}

CellMachine::Mark CellMachine::pop_mark() {
  if (marks_.empty()) throw damaged_pickle("pickle stack underflow");
  const Mark mark = marks_.back();
  marks_.pop_back();
  find_floor();
  return mark;
}

// ---- containers

void CellMachine::tuple(size_t first) {
  const Cell made = store_.tuple(Cell::tuple, from(first));
  cut(first);
  if (top_ == room_) grow_stack(1);
  push(made);
}

// Cells from the mark on go into the container below them.
void CellMachine::append(const Mark& mark) {
  const std::span<const Cell> cells = from(mark.depth);
  Cell* const at = stack_.data() + mark.depth;   // behind the container
  if (at == floor_) throw damaged_pickle("pickle stack underflow");
  Cell& container = at[-1];
  if (container.is(Cell::fresh_dict) || container.is(Cell::dict)) {
    if (cells.size() % 2 != 0) throw damaged_pickle("key without a value in pickle");
    if (container.is(Cell::fresh_dict)) {
      if (at - floor_ >= 2 && byte_at(window_.at) == kBuild && window_.at < window_.end) {   // the state of an object
        ++window_.at;
        cut(mark.depth - 1);
        return build_object(cells);
      }
      container = store_.run(Cell::dict);
    }
    if (!meaning_.take(container, cells)) store_.append(container, cells);
    else if (container.ref() < mark.store.parts) store_.release(mark.store);   // what was made for the items alone
  } else if (container.is(Cell::list)) {
    store_.append(container, cells);
  } else if (!container.is(Cell::opaque) && !container.is(Cell::object)) {
    throw damaged_pickle("items in pickle for something that is no container");
  }
  cut(mark.depth);
}

// ---- objects

// Calls what lies at `callable` with what lies above it.
void CellMachine::call(size_t callable) {
  const Cell called = stack_[callable];
  if (!called.is(Cell::global)) throw unsupported_pickle("unsafe callable in pickle", "what is no class");
  const CellStore::Mark before = store_.mark();
  const Cell made = meaning_.call(called, from(callable + 1));
  cut(callable);
  push(made);
  if (!made.is(Cell::object)) return;
  forget_open(callable);
  open_.push_back({callable, before});
}

// A callable and a tuple of arguments.
void CellMachine::call_tuple() {
  const size_t callable = below(2);
  const Cell args = pop();
  if (!args.is(Cell::tuple)) throw damaged_pickle("arguments in pickle are not a tuple");
  const std::span<const Cell> cells = store_.cells(args);
  if (static_cast<size_t>(room_ - top_) <= cells.size()) grow_stack(cells.size());
  for (Cell c : cells) push(c);
  call(callable);
}

void CellMachine::build() {
  below(2);
  const Cell state = pop();
  if (state.is(Cell::dict)) return build_object(store_.contents(state));
  if (state.is(Cell::fresh_dict)) return build_object({});
  const Cell object = top_[-1];
  if (object.is(Cell::object)) {
    meaning_.build_state(object, state);
    close();
  } else if (!object.is(Cell::opaque)) {
    throw damaged_pickle("state in pickle for something that takes none");
  }
}

void CellMachine::build_object(std::span<const Cell> fields) {
  const Cell object = top_[-1];
  if (object.is(Cell::object)) {
    meaning_.build(object, fields);
    close();
  } else if (!object.is(Cell::opaque) && !object.is(Cell::dict)) {   // dict: attributes of an OrderedDict
    throw damaged_pickle("state in pickle for something that takes none");
  }
}

// The object on top is built: what was made since it was made was for it alone.
void CellMachine::close() {
  const size_t depth = this->depth() - 1;
  forget_open(depth + 1);
  if (open_.empty() || open_.back().depth != depth) return;
  store_.release(open_.back().store);
  open_.pop_back();
}

// The value on top will be used again.
void CellMachine::hold_top() {
  Cell& held = top();
  if (CellMemo::lasts(held)) return;
  if (held.is(Cell::fresh_dict)) held = store_.run(Cell::dict);
  if (!held.is(Cell::object)) store_.hold(held);
  meaning_.hold(held);
}

// ---- most of a real file at once

// Can `memoized` numbers of the memo be passed over, if those of `kept` (as bits) are not?
bool CellMachine::may_skip(unsigned memoized, uint64_t kept) const {
  return !memo_.is_exact() || (memoized < 64 && (memo_.wanted(memoized) & ~kept) == 0);
}

// The torch.Size whose class was just fetched, if a tuple of few numbers follows. False, and nothing has happened, if not.
bool CellMachine::whole_size() {
  const char* p = window_.at;
  Cell dims[3];
  size_t n = 0;
  while (n < 3 && take_integer(p, dims[n])) ++n;
  unsigned memoized = 0;
  const auto fixed = [&](size_t opcode) {        // and its MEMOIZE
    if (byte_at(p) != opcode) return false;
    for (++p; memo_.counts() && byte_at(p) == kMemoize; ++p) ++memoized;
    return true;
  };
  if (n == 0 || !fixed(kTuple1 + n - 1) || !fixed(kTuple1) || !fixed(kReduce) || p > window_.end) return false;
  if (!may_skip(memoized, 0)) return false;
  memo_.skip(memoized);
  push(store_.tuple(Cell::size, std::span(dims, n)));
  window_.at = p;
  return true;
}

// The object whose class was just fetched, if it looks like one before it. False, and nothing has happened, if not.
bool CellMachine::whole_object(Cell cls) {
  static_assert(ByteWindow::kSpare >= ObjectPattern::kReach);
  if (cls.ref() >= patterns_.size()) patterns_.resize(cls.ref() + 1);
  Patterns& patterns = patterns_[cls.ref()];
  std::vector<ObjectPattern>& known = patterns.known;
  const char* end = known.empty() ? nullptr : known[patterns.latest].match(window_.at);
  for (size_t p = 0; end == nullptr && p < known.size(); ++p) {
    end = known[p].match(window_.at);
    if (end != nullptr) patterns.latest = p;
  }
  if (end == nullptr && !learn(patterns, end)) return false;
  if (end > window_.end) return false;           // cut short; somebody else says so
  if (!may_skip(known[patterns.latest].memoized(), known[patterns.latest].kept())) return false;
  apply(known[patterns.latest], cls);
  window_.at = end;
  return true;
}

bool CellMachine::learn(Patterns& patterns, const char*& end) {
  constexpr size_t kMostPatterns = 8;
  constexpr int kMostFailures = 64;              // then nobody tries any more
  if (patterns.known.size() == kMostPatterns || patterns.failures == kMostFailures) return false;
  auto learnt = ObjectPattern::learn(window_.at, memo_);
  end = learnt ? learnt->match(window_.at) : nullptr;
  if (end == nullptr) {
    ++patterns.failures;
    return false;
  }
  patterns.latest = patterns.known.size();
  patterns.known.push_back(*learnt);
  return true;
}

// One of its own, that lasts, of a size whose cells are lent.
Cell CellMachine::held_size(Cell lent) {
  const Cell own = store_.tuple(Cell::size, store_.cells(lent));
  store_.hold(own);
  return own;
}

// What running the opcodes of the object would do.
void CellMachine::apply(ObjectPattern& pattern, Cell cls) {
  store_.lend(pattern.cells());
  for (const ObjectPattern::Late& late : pattern.late()) {
    memo_.skip(late.memoized);
    Cell& cell = pattern.cell(late);
    if (late.kind == ObjectPattern::Late::fetched) cell = memo_.get(pattern.found(late).id);
    else if (late.kind == ObjectPattern::Late::text) cell = Cell(Cell::string, 0, names_.add(pattern.found(late).text));
    if (!late.kept) continue;
    memo_.append(late.kind == ObjectPattern::Late::size && memo_.wants_next() ? held_size(cell) : cell);
  }
  memo_.skip(pattern.memoized_last());
  const Cell object = meaning_.call(cls, {});
  if (!pattern.is_tuple()) {
    meaning_.build(object, pattern.fields());
  } else {
    meaning_.build_state(object, Cell(Cell::tuple, static_cast<uint32_t>(pattern.fields().size()), CellStore::kLent));
  }
  forget_open(depth());
  push(object);
}

}  // namespace fsdpctl
