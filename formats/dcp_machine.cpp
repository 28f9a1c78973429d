#include "formats/dcp_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_text.h"
#include "lib/base/utf8.h"

namespace fsdpctl {

using namespace pickle;

// ---- window

namespace {
constexpr size_t kWindow = size_t{1} << 18;
}

ByteWindow::ByteWindow(Read read, uint64_t size)
    : read_(std::move(read)), size_(size), buffer_(std::min<uint64_t>(kWindow, size) + kSpare) {
  at = end = buffer_.data();
}

// Moves what is left to the front and reads on.
bool ByteWindow::refill(uint64_t need) {
  const uint64_t begin = position(at);
  if (at > end || need > size_ - begin) return false;
  const auto kept = static_cast<size_t>(end - at);
  if (need > buffer_.size() - kSpare) {
    std::vector<char> bigger(need + kSpare);
    std::memcpy(bigger.data(), at, kept);
    buffer_ = std::move(bigger);
  } else {
    std::memmove(buffer_.data(), at, kept);
  }
  const uint64_t more = std::min<uint64_t>(buffer_.size() - kSpare - kept, size_ - begin - kept);
  read_(begin + kept, std::as_writable_bytes(std::span(buffer_.data() + kept, more)));
  base_ = begin;
  at = buffer_.data();
  end = at + kept + more;
  std::fill_n(buffer_.data() + kept + more, kSpare, '\0');
  return true;
}

// ---- machine

namespace {

constexpr uint64_t kMaxString = uint64_t{1} << 20;
constexpr uint64_t kLookAhead = uint64_t{64} << 10;
constexpr size_t kStackRoom = 1024;
constexpr size_t kBlock = 4096;

struct NotKept {};

Error damaged(const char* what, std::string found = {}) { return Error(Exit::damaged, what).found_only(std::move(found)); }
Error unsupported(const char* what, std::string found = {}) {
  return Error(Exit::unsupported, what).found_only(std::move(found));
}
Error cut_short(const ByteWindow& window) { return damaged("metadata is cut short", fmt::format("end of file at {}", window.size())); }

uint8_t byte_at(const char* p) { return static_cast<uint8_t>(*p); }

template <class Integer>
Integer load(const char* p) {
  Integer v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

CellMachine::CellMachine(CellStore& store, NameTable& names, CellMeaning& meaning, ByteWindow& window, bool keep_all)
    : store_(store), names_(names), meaning_(meaning), window_(window), stack_(kStackRoom), top_(stack_.data()),
      room_(top_ + stack_.size()), opcode_at_(window.at), keep_all_(keep_all) {}

std::optional<Cell> CellMachine::run() {
  try {
    execute();
  } catch (const NotKept&) {
    return std::nullopt;
  }
  if (depth() != 1) throw damaged("pickle ends with more or less than one value");
  return stack_[0];
}

// The opcodes that big files consist of, on local copies of the two pointers that each of them moves.
void CellMachine::execute() {
  const char* p = window_.at;
  Cell* top = top_;
  for (;;) {
    if (window_.end - p < ByteWindow::kSpare || top == room_) {
      window_.at = p, top_ = top;
      refill();
      p = window_.at, top = top_;
    }
    opcode_at_ = p;
    const uint8_t opcode = byte_at(p++);
    switch (opcode) {
      case kMemoize:
        if (drops_ && top != stack_.data()) {
          if (lasts(top[-1])) keep(memoized_, top[-1]);
          ++memoized_;
          break;
        }
        window_.at = p, top_ = top;
        memoize();
        break;
      case kBinGet: case kLongBinGet: {
        const uint32_t id = opcode == kBinGet ? byte_at(p) : load<uint32_t>(p);
        p += opcode == kBinGet ? 1 : 4;
        const Fetched& recent = recent_[id % kRecent];
        top_ = top;
        *top++ = recent.id == id ? recent.cell : fetch(id);
        break;
      }
      case kMark: marks_.push_back(static_cast<size_t>(top - stack_.data())); break;
      case kBinInt1: *top++ = Cell::number(byte_at(p)), p += 1; break;
      case kBinInt2: *top++ = Cell::number(load<uint16_t>(p)), p += 2; break;
      case kBinInt: *top++ = Cell::number(load<int32_t>(p)), p += 4; break;
      case kNone: *top++ = Cell(Cell::none); break;
      case kNewTrue: *top++ = Cell(Cell::boolean, 0, 1); break;
      case kNewFalse: *top++ = Cell(Cell::boolean); break;
      case kEmptyTuple: *top++ = Cell(Cell::tuple); break;
      case kStop:
        window_.at = p, top_ = top;
        if (p > window_.end) throw cut_short(window_);
        return;
      default:
        window_.at = p, top_ = top;
        step(opcode);
        p = window_.at, top = top_;
    }
  }
}

// Near the end of the window, or with a full stack.
void CellMachine::refill() {
  if (window_.at > window_.end) throw cut_short(window_);
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
    case kTuple: return tuple(pop_mark());
    case kEmptyDict: return push(keep_all_ ? store_.run(Cell::dict) : Cell(Cell::fresh_dict));
    case kEmptyList: return push(store_.run(Cell::list));
    case kSetItems: case kAppends: return append(pop_mark());
    case kReduce: case kNewObj: return call_tuple();
    case kBuild: return build();
    case kShortBinUnicode: return string(number<uint8_t>());
    case kBinPut: return put_numbered(number<uint8_t>());
    case kLongBinPut: return put_numbered(number<uint32_t>());
    case kLong1: return integer_bytes(number<uint8_t>());
    case kLong4: return integer_bytes(number<uint32_t>());
    case kBinFloat: return skip(8);
    case kShortBinString: return string(number<uint8_t>());
    case kBinUnicode: case kBinString: return string(number<uint32_t>());
    case kBinUnicode8: return string(number<uint64_t>());
    case kShortBinBytes: return skip(number<uint8_t>());
    case kBinBytes: return skip(number<uint32_t>());
    case kBinBytes8: case kByteArray8: return skip(number<uint64_t>());
    case kSetItem: return append(below(2));
    case kAppend: return append(below(1));
    case kEmptySet: return push(Cell(Cell::opaque));
    case kAddItems: return append(pop_mark());
    case kFrozenSet: cut(pop_mark()); return push(Cell(Cell::opaque));
    case kNewObjEx: pop(); return call_tuple();   // keyword arguments: of classes that do not matter here
    case kGlobal: case kInst: {
      const std::string module = line(), name = line();
      const Cell made = meaning_.global(module, name);
      if (opcode == kGlobal) return push(made);
      const size_t first = pop_mark();
      insert(first, made);
      return call(first);
    }
    case kStackGlobal: {
      const Cell name = pop(), module = pop();
      if (!name.is(Cell::string) || !module.is(Cell::string)) throw damaged("name in pickle is not a string");
      return push(meaning_.global(names_.text(module.ref()), names_.text(name.ref())));
    }
    case kProto:
      protocol_ = number<uint8_t>();
      if (protocol_ > 5) throw unsupported("pickle protocol not supported", std::to_string(protocol_));
      return;
    case kFrame: number<uint64_t>(); return;
    case kPop:   // of a mark, where one is on top
      if (!marks_.empty() && marks_.back() == depth()) marks_.pop_back();
      else pop();
      return;
    case kPopMark: return cut(pop_mark());
    case kDup:
      need(1);
      if (!lasts(top_[-1]) && !keep_all_) throw NotKept();
      return push(top_[-1]);
    case kExt1: case kExt2: case kExt4: throw unsupported("pickle uses a registered extension");
    case kPersId: case kBinPersId: throw unsupported("pickle refers to objects outside it");
    case kNextBuffer: case kReadonlyBuffer: throw unsupported("pickle uses out-of-band buffers");
    default: return old_step(opcode);
  }
}

// Protocols 0 and 1: no PyTorch writes them here, but hostile files do.
void CellMachine::old_step(uint8_t opcode) {
  switch (opcode) {
    case kObj: {
      const size_t first = pop_mark();
      if (first == depth()) throw damaged("pickle stack underflow");
      return call(first);
    }
    case kInt: case kLong: {
      std::string digits = line();
      if (opcode == kInt && (digits == "00" || digits == "01")) return push(Cell(Cell::boolean, 0, digits == "01"));
      if (opcode == kLong && digits.ends_with('L')) digits.pop_back();
      int64_t v = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), v);
      if (error == std::errc::invalid_argument || end != digits.data() + digits.size()) throw damaged("integer in pickle is not one");
      return push(error == std::errc() ? Cell::number(v) : Cell(Cell::big));
    }
    case kFloat: line(); return push(Cell(Cell::opaque));
    case kUnicode: case kString: {
      const std::string text = line();
      const auto plain = opcode == kString ? unescape_string(text) : unescape_unicode(text);
      if (!plain || !is_utf8(*plain, true)) throw damaged("string in pickle is not escaped as Python does");
      return push(Cell(Cell::string, 0, names_.number(*plain)));
    }
    case kDict: case kList: {
      const size_t first = pop_mark();
      insert(first, store_.run(opcode == kDict ? Cell::dict : Cell::list));
      return append(first + 1);
    }
    case kGet: case kPut: {
      const std::string digits = line();
      uint64_t id = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
      if (error != std::errc() || end != digits.data() + digits.size()) throw damaged("memo number in pickle is not a number");
      if (opcode == kGet) return push(fetch(id));
      return put_numbered(id);
    }
    default: throw damaged("unknown pickle opcode", fmt::format("0x{:02x}", opcode));
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

// The argument of an opcode. execute() has made sure that its bytes can be looked at; who goes on asks whether they exist.
template <class Integer>
Integer CellMachine::number() {
  const auto v = load<Integer>(window_.at);
  window_.at += sizeof v;
  return v;
}

void CellMachine::string(uint64_t length) {
  if (window_.at > window_.end || length > window_.left()) throw cut_short(window_);
  if (length > kMaxString) throw unsupported("metadata holds a string of more than a megabyte");
  const std::string_view text(take(length), length);
  if (!is_utf8(text, true)) throw damaged("string in pickle is not UTF-8");
  push(Cell(Cell::string, 0, names_.number(text)));
}

void CellMachine::skip(uint64_t length) {
  if (window_.at > window_.end || length > window_.left()) throw cut_short(window_);
  for (; length > kBlock; length -= kBlock) take(kBlock);
  take(length);
  push(Cell(Cell::opaque));
}

void CellMachine::integer_bytes(uint64_t length) {
  if (length > 8) {
    skip(length);
    top_[-1] = Cell(Cell::big);
    return;
  }
  uint64_t v = 0;
  if (length > 0) std::memcpy(&v, take(length), length);
  const auto shift = static_cast<unsigned>(64 - 8 * std::max<uint64_t>(length, 1));
  push(Cell::number(static_cast<int64_t>(v << shift) >> shift));
}

std::string CellMachine::line() {
  std::string text;
  for (char c = *take(1); c != '\n'; c = *take(1)) {
    if (text.size() == kMaxString) throw unsupported("metadata holds a string of more than a megabyte");
    text += c;
  }
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// ---- stack

void CellMachine::grow_stack(size_t room) {
  const size_t used = depth();
  stack_.resize(std::max(2 * stack_.size(), used + room + kStackRoom));
  top_ = stack_.data() + used;
  room_ = stack_.data() + stack_.size();
}

void CellMachine::need(size_t cells) const {
  if (depth() < cells) throw damaged("pickle stack underflow");
}

size_t CellMachine::below(size_t cells) const {
  need(cells);
  return depth() - cells;
}

Cell CellMachine::pop() {
  need(1);
  return *--top_;
}

size_t CellMachine::pop_mark() {
  if (marks_.empty() || marks_.back() > depth()) throw damaged("pickle stack underflow");
  const size_t first = marks_.back();
  marks_.pop_back();
  return first;
}

void CellMachine::insert(size_t depth, Cell c) {
  if (top_ == room_) grow_stack(1);
  push(c);
  std::rotate(stack_.data() + depth, top_ - 1, top_);
}

// ---- containers

void CellMachine::tuple(size_t first) {
  const Cell made = store_.tuple(Cell::tuple, from(first));
  cut(first);
  if (top_ == room_) grow_stack(1);
  push(made);
}

// Cells from `first` on go into the container below them.
void CellMachine::append(size_t first) {
  if (first == 0) throw damaged("pickle stack underflow");
  Cell& container = stack_[first - 1];
  const std::span<const Cell> cells = from(first);
  if (container.is(Cell::fresh_dict) || container.is(Cell::dict)) {
    if (cells.size() % 2 != 0) throw damaged("key without a value in pickle");
    if (container.is(Cell::fresh_dict)) {
      if (first >= 2 && byte_at(window_.at) == kBuild && window_.at < window_.end) {   // the state of an object
        ++window_.at;
        cut(first - 1);
        return build_object(cells);
      }
      container = store_.run(Cell::dict);
    }
    if (!meaning_.take(container, cells)) store_.append(container, cells);
  } else if (container.is(Cell::list)) {
    store_.append(container, cells);
  } else if (!container.is(Cell::opaque) && !container.is(Cell::object)) {
    throw damaged("items in pickle for something that is no container");
  }
  cut(first);
}

// ---- objects

// Calls what lies at `callable` with what lies above it.
void CellMachine::call(size_t callable) {
  const Cell called = stack_[callable];
  if (!called.is(Cell::global)) throw unsupported("unsafe callable in pickle", "what is no class");
  const CellStore::Mark before = store_.mark();
  const Cell made = meaning_.call(called, from(callable + 1));
  cut(callable);
  push(made);
  if (!made.is(Cell::object)) return;
  forget_open(callable);
  if (object_at_once()) return;
  open_.push_back({callable, before});
}

// A callable and a tuple of arguments.
void CellMachine::call_tuple() {
  need(2);
  const Cell args = pop();
  if (!args.is(Cell::tuple)) throw damaged("arguments in pickle are not a tuple");
  const size_t callable = depth() - 1;
  const std::span<const Cell> cells = store_.cells(args);
  if (static_cast<size_t>(room_ - top_) <= cells.size()) grow_stack(cells.size());
  for (Cell c : cells) push(c);
  call(callable);
}

void CellMachine::build() {
  need(2);
  const Cell state = *--top_;
  if (state.is(Cell::dict)) return build_object(store_.contents(state));
  if (state.is(Cell::fresh_dict)) return build_object({});
  const Cell object = top_[-1];
  if (object.is(Cell::object)) {
    meaning_.build_state(object, state);
    close();
  } else if (!object.is(Cell::opaque)) {
    throw damaged("state in pickle for something that takes none");
  }
}

void CellMachine::build_object(std::span<const Cell> fields) {
  const Cell object = top_[-1];
  if (object.is(Cell::object)) {
    meaning_.build(object, fields);
    close();
  } else if (!object.is(Cell::opaque) && !object.is(Cell::dict)) {   // dict: attributes of an OrderedDict
    throw damaged("state in pickle for something that takes none");
  }
}

// The object on top is built: what was made since it was made was for it alone.
void CellMachine::close() {
  const size_t depth = this->depth() - 1;
  forget_open(depth + 1);
  if (open_.empty() || open_.back().depth != depth) return;
  if (!keep_all_) store_.release(open_.back().mark);
  open_.pop_back();
}

// ---- most of a real file at once

namespace {

// BININT1, BININT2 or BININT at p, which moves behind it.
inline bool flat_integer(const char*& p, Cell& value) {
  switch (byte_at(p)) {
    case kBinInt1: value = Cell::number(byte_at(p + 1)), p += 2; return true;
    case kBinInt2: value = Cell::number(load<uint16_t>(p + 1)), p += 3; return true;
    case kBinInt: value = Cell::number(load<int32_t>(p + 1)), p += 5; return true;
    default: return false;
  }
}

}  // namespace

// The object on top, just made, if its fields are numbers, sizes and strings: EMPTY_DICT MARK key value ... SETITEMS BUILD.
// Three quarters of a real file are such objects. False, and nothing has happened, if it is another one.
bool CellMachine::object_at_once() {
  constexpr size_t kMaxCells = 8;
  constexpr ptrdiff_t kReach = 600;              // further than one field can go
  if (!drops_) return false;
  const size_t kept = kept_ids_.size();
  const CellStore::Mark mark = store_.mark();
  const char* p = window_.at;
  uint64_t memoized = memoized_;
  Cell fields[kMaxCells];
  size_t count = 0;

  const auto skip_memoize = [&] { for (; byte_at(p) == kMemoize; ++p) ++memoized; };   // of what is not kept
  const auto take = [&](uint8_t opcode) {        // and its MEMOIZE
    if (byte_at(p) != opcode) return false;
    ++p;
    skip_memoize();
    return true;
  };
  const auto size = [&](Cell& value) {           // what follows the global torch.Size where it is called
    Cell dims[3];
    size_t n = 0;
    while (n < 3 && flat_integer(p, dims[n])) ++n;
    if (n == 0 || !take(static_cast<uint8_t>(kTuple1 + n - 1)) || !take(kTuple1) || !take(kReduce)) return false;
    value = store_.tuple(Cell::size, std::span(dims, n));
    return true;
  };
  const auto string = [&](Cell& value) {
    const std::string_view text(p + 2, byte_at(p + 1));
    if (!is_utf8(text, true)) return false;
    p += 2 + text.size();
    value = Cell(Cell::string, 0, names_.number(text));
    if (byte_at(p) == kMemoize) keep(memoized++, value), ++p;
    return true;
  };
  const auto fetched = [&](Cell& value) {
    const bool is_short = byte_at(p) == kBinGet;
    const uint32_t id = is_short ? byte_at(p + 1) : load<uint32_t>(p + 1);
    p += is_short ? 2 : 5;
    const Fetched& recent = recent_[id % kRecent];
    value = recent.id == id ? recent.cell : fetch(id);
    return !value.is(Cell::global) || value.n() != CellMeaning::kSizeClass || size(value);
  };
  const auto field = [&](Cell& value) {
    if (window_.end - p < kReach) return false;
    switch (byte_at(p)) {
      case kBinGet: case kLongBinGet: return fetched(value);
      case kShortBinUnicode: return string(value);
      case kNone: value = Cell(Cell::none), ++p; return true;
      default: return flat_integer(p, value);
    }
  };
  const auto object = [&] {
    skip_memoize();                              // of the object itself
    if (window_.end - p < kReach || !take(kEmptyDict) || byte_at(p) != kMark) return false;
    for (++p; byte_at(p) != kSetItems; ++count) {
      if (count == kMaxCells || !field(fields[count])) return false;
    }
    return count % 2 == 0 && byte_at(p + 1) == kBuild;
  };

  const bool done = object();
  if (done) {
    window_.at = p + 2;
    memoized_ = memoized;
    meaning_.build(top_[-1], std::span(fields, count));
  } else {
    kept_ids_.resize(kept);
    kept_cells_.resize(kept);
  }
  store_.release(mark);
  return done;
}

// ---- memo

void CellMachine::memoize() {
  if (numbering_ == Numbering::puts) throw unsupported("pickle mixes two ways to number its memo");
  numbering_ = Numbering::memoizes;
  drops_ = !keep_all_;
  put(memoized_);
}

void CellMachine::put_numbered(uint64_t id) {
  if (numbering_ == Numbering::memoizes) throw unsupported("pickle mixes two ways to number its memo");
  numbering_ = Numbering::puts;
  put(id);
}

void CellMachine::put(uint64_t id) {
  need(1);
  if (window_.at > window_.end) throw cut_short(window_);
  if (id >= window_.size()) throw unsupported("pickle numbers its memo beyond reason", std::to_string(id));
  if (keep_all_) {
    kept_all_[id] = top_[-1];
    memoized_ = std::max(memoized_, id + 1);
    return;
  }
  if (id < memoized_) throw NotKept();   // not in order
  if (lasts(top_[-1])) keep(id, top_[-1]);
  memoized_ = id + 1;
}

void CellMachine::keep(uint64_t id, Cell c) {
  if (id > UINT32_MAX) throw unsupported("pickle numbers its memo beyond reason", std::to_string(id));
  kept_ids_.push_back(static_cast<uint32_t>(id));
  kept_cells_.push_back(c);
}

Cell CellMachine::fetch(uint64_t id) {
  if (keep_all_) {
    const auto kept = kept_all_.find(id);
    if (kept == kept_all_.end()) throw damaged("pickle fetches a memo entry that it never stored", std::to_string(id));
    return kept->second;
  }
  const auto at = std::lower_bound(kept_ids_.begin(), kept_ids_.end(), id);
  if (at == kept_ids_.end() || *at != id) {
    if (id < memoized_) throw NotKept();
    throw damaged("pickle fetches a memo entry that it never stored", std::to_string(id));
  }
  const Cell c = kept_cells_[static_cast<size_t>(at - kept_ids_.begin())];
  recent_[id % kRecent] = {id, c};
  return c;
}

}  // namespace fsdpctl
