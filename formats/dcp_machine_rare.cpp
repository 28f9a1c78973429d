// Opcodes of the machine that a `.metadata` has once or never, protocols 0 and 1 among them.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_text.h"
#include "formats/dcp_machine.h"
#include "formats/dcp_machine_errors.h"
#include "lib/base/utf8.h"

namespace fsdpctl {

using namespace pickle;

void CellMachine::rare_step(uint8_t opcode) {
  switch (opcode) {
    case kProto:
      protocol_ = number<uint8_t>();
      if (protocol_ > 5) throw unsupported_pickle("pickle protocol not supported", std::to_string(protocol_));
      return;
    case kLong4: return integer_bytes(number<uint32_t>());
    case kBinFloat: return skip(8);
    case kShortBinString: return string(number<uint8_t>());
    case kBinString: return string(number<uint32_t>());
    case kBinUnicode8: return string(number<uint64_t>());
    case kShortBinBytes: return skip(number<uint8_t>());
    case kBinBytes: return skip(number<uint32_t>());
    case kBinBytes8: case kByteArray8: return skip(number<uint64_t>());
    case kEmptySet: return push(Cell(Cell::opaque));
    case kAddItems: return append(pop_mark());
    case kFrozenSet: cut(pop_mark().depth); return push(Cell(Cell::opaque));
    case kNewObjEx: pop(); return call_tuple();   // keyword arguments: of classes that do not matter here
    case kPopMark: return cut(pop_mark().depth);
    case kDup: {
      if (!CellMemo::lasts(top())) hold_top();
      return push(top());
    }
    case kExt1: case kExt2: case kExt4: throw unsupported_pickle("pickle uses a registered extension");
    case kPersId: case kBinPersId: throw unsupported_pickle("pickle refers to objects outside it");
    case kNextBuffer: case kReadonlyBuffer: throw unsupported_pickle("pickle uses out-of-band buffers");
    default: return old_step(opcode);
  }
}

// Protocols 0 and 1: no PyTorch writes them here, but hostile files do.
void CellMachine::old_step(uint8_t opcode) {
  switch (opcode) {
    case kInst: {
      global();
      const Cell made = pop();
      const size_t first = pop_mark().depth;
      insert(first, made);
      return call(first);
    }
    case kObj: {
      const size_t first = pop_mark().depth;
      if (first == depth()) throw damaged_pickle("pickle stack underflow");
      return call(first);
    }
    case kInt: case kLong: return old_integer(opcode == kLong);
    case kFloat: line(); return push(Cell(Cell::opaque));
    case kUnicode: case kString: return old_string(opcode == kUnicode);
    case kDict: case kList: {
      Mark mark = pop_mark();
      insert(mark.depth++, store_.run(opcode == kDict ? Cell::dict : Cell::list));
      return append(mark);
    }
    case kGet: return push(memo_.get(old_memo_number()));
    case kPut: {
      const uint64_t id = old_memo_number();
      if (memo_.wants(id)) hold_top();
      return memo_.put(id, top());
    }
    default: throw damaged_pickle("unknown pickle opcode", fmt::format("0x{:02x}", opcode));
  }
}

void CellMachine::insert(size_t depth, Cell c) {
  if (top_ == room_) grow_stack(1);
  push(c);
  std::rotate(stack_.data() + depth, top_ - 1, top_);
}

// ---- names of classes

void CellMachine::global() {
  const std::string module = line(), name = line();
  push(meaning_.global(module, name));
}

void CellMachine::stack_global() {
  const Cell name = pop(), module = pop();
  if (!name.is(Cell::string) || !module.is(Cell::string)) throw damaged_pickle("name in pickle is not a string");
  push(meaning_.global(names_.text(module.ref()), names_.text(name.ref())));
}

// ---- bytes

void CellMachine::skip(uint64_t length) {
  constexpr uint64_t kBlock = 4096;
  check_length(length);
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
    if (text.size() == kMaxPickleString) throw unsupported_pickle("metadata holds a string of more than a megabyte");
    text += c;
  }
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

void CellMachine::old_integer(bool is_long) {
  std::string digits = line();
  if (!is_long && (digits == "00" || digits == "01")) return push(Cell(Cell::boolean, 0, digits == "01"));
  if (is_long && digits.ends_with('L')) digits.pop_back();
  int64_t v = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), v);
  if (error == std::errc::invalid_argument || end != digits.data() + digits.size()) throw damaged_pickle("integer in pickle is not one");
  push(error == std::errc() ? Cell::number(v) : Cell(Cell::big));
}

void CellMachine::old_string(bool is_unicode) {
  const std::string text = line();
  const auto plain = is_unicode ? unescape_unicode(text) : unescape_string(text);
  if (!plain || !is_utf8(*plain, true)) throw damaged_pickle("string in pickle is not escaped as Python does");
  push(Cell(Cell::string, 0, names_.add(*plain)));
}

uint64_t CellMachine::old_memo_number() {
  const std::string digits = line();
  uint64_t id = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc() || end != digits.data() + digits.size()) throw damaged_pickle("memo number in pickle is not a number");
  return id;
}

}  // namespace fsdpctl
