#include "formats/codec/pickle_writer.h"

#include <fmt/format.h>

#include <bit>
#include <utility>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_writer_state.h"
#include "formats/codec/python_classes.h"
#include "lib/base/finding.h"

namespace fsdpctl {

using namespace pickle;

void TensorEmitter::tensor(const Value&, PickleWriter&) {
  throw Error(Exit::refused, "tensor where none can be written");
}

void TensorEmitter::storage(TensorIndex, std::string_view, PickleWriter&) {
  throw Error(Exit::refused, "storage where none can be written");
}

PickleWriter::PickleWriter(std::string& out, TensorEmitter& emitter)
    : out_(&out), state_(std::make_shared<State>(out, emitter)) {}

void PickleWriter::begin() {
  op(kProto);
  op(2);
}

void PickleWriter::end() { op(kStop); }
void PickleWriter::none() { op(kNone); }
void PickleWriter::mark() { op(kMark); }
void PickleWriter::op(uint8_t opcode) { out_->push_back(static_cast<char>(opcode)); }
void PickleWriter::boolean(bool v) { op(v ? kNewTrue : kNewFalse); }

void PickleWriter::integer(int64_t v) {
  if (v >= 0 && v <= UINT8_MAX) {
    op(kBinInt1);
    number(static_cast<uint8_t>(v));
  } else if (v >= 0 && v <= UINT16_MAX) {
    op(kBinInt2);
    number(static_cast<uint16_t>(v));
  } else if (v >= INT32_MIN && v <= INT32_MAX) {
    op(kBinInt);
    number(static_cast<int32_t>(v));
  } else {
    // Two's complement without the bytes that only repeat the sign.
    const auto bits = static_cast<uint64_t>(v);
    const auto length = static_cast<size_t>(std::bit_width(v < 0 ? ~bits : bits) / 8 + 1);
    op(kLong1);
    op(static_cast<uint8_t>(length));
    out_->append(reinterpret_cast<const char*>(&bits), length);
  }
}

void PickleWriter::real(double v) {
  const auto bits = std::bit_cast<uint64_t>(v);
  op(kBinFloat);
  for (int shift = 56; shift >= 0; shift -= 8) op(static_cast<uint8_t>(bits >> shift));
}

void PickleWriter::unique_string(std::string_view utf8) {
  if (utf8.size() > UINT32_MAX) {
    throw Error(Exit::refused, "string too long for a pickle").found_only(fmt::format("{} bytes", utf8.size()));
  }
  op(kBinUnicode);
  number(static_cast<uint32_t>(utf8.size()));
  *out_ += utf8;
}

void PickleWriter::string(std::string_view utf8) {
  const auto at = state_->strings.find(utf8);
  if (at != state_->strings.end() && State::is_memoised(at->second)) return memo_get(at->second);
  unique_string(utf8);
  const uint32_t id = memo_put();
  if (at != state_->strings.end()) {
    at->second = id;
  } else {
    state_->strings.emplace(state_->arena.store(utf8), id);
  }
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  const auto at = state_->globals.find({module, name});
  if (at != state_->globals.end()) return memo_get(at->second);
  if (const size_t dot = name.rfind('.'); dot != std::string_view::npos) {
    global("builtins", "getattr");
    global(module, name.substr(0, dot));
    unique_string(name.substr(dot + 1));
    op(kTuple2);
    op(kReduce);
  } else {
    if (module.find('\n') != std::string_view::npos || name.find('\n') != std::string_view::npos) {
      throw Error(Exit::refused, "name that a pickle cannot hold").found_only(fmt::format("{}.{}", module, name));
    }
    const auto [old_module, old_name] = python2_name(module, name);
    op(kGlobal);
    out_->append(old_module).append("\n").append(old_name).append("\n");
  }
  const uint32_t id = memo_put();
  state_->globals.emplace(std::pair(state_->arena.store(module), state_->arena.store(name)), id);
}

void PickleWriter::int_tuple(std::span<const int64_t> dims) {
  if (dims.empty()) return op(kEmptyTuple);
  if (dims.size() > 3) mark();
  for (int64_t n : dims) integer(n);
  op(dims.size() == 1 ? kTuple1 : dims.size() == 2 ? kTuple2 : dims.size() == 3 ? kTuple3 : kTuple);
}

uint32_t PickleWriter::memo_put() {
  const uint32_t id = state_->next_id++;
  if (id < 256) {
    op(kBinPut);
    op(static_cast<uint8_t>(id));
  } else {
    op(kLongBinPut);
    number(id);
  }
  return id;
}

void PickleWriter::memo_get(uint32_t id) {
  if (id < 256) {
    op(kBinGet);
    op(static_cast<uint8_t>(id));
  } else {
    op(kLongBinGet);
    number(id);
  }
}

}  // namespace fsdpctl
