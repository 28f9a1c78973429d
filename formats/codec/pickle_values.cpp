// Literals and containers of the pickle machine.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>

#include "formats/codec/big_integer.h"
#include "formats/codec/pickle_machine.h"
#include "formats/codec/pickle_text.h"
#include "lib/base/utf8.h"

namespace fsdpctl::pickle {
// ---- arguments and literals

std::string_view Machine::text(uint64_t length) {
  const std::string_view view(reinterpret_cast<const char*>(p_), length);
  p_ += length;
  return view;
}

std::string_view Machine::line() {
  const auto* newline = static_cast<const uint8_t*>(std::memchr(p_, '\n', static_cast<size_t>(begin_ + scan_.consumed - p_)));
  const std::string_view view(reinterpret_cast<const char*>(p_), static_cast<size_t>(newline - p_));
  p_ = newline + 1;
  return view;
}

Value Machine::string(std::string_view utf8) const {
  if (!is_utf8(utf8, true)) throw error(Exit::damaged, "string in pickle is not UTF-8");
  return Value::string(utf8);
}

Value Machine::python2_string(std::string_view raw) const { return is_utf8(raw, true) ? Value::string(raw) : Value::bytes(raw); }

Value Machine::big_endian_real() {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = bits << 8 | *p_++;
  return Value::real(std::bit_cast<double>(bits));
}

Value Machine::integer_bytes(uint64_t length) {
  if (length > kBigIntegerLimit) {
    throw error(Exit::unsupported, "integer in pickle too long")
        .saw(fmt::format("at most {} bytes", kBigIntegerLimit), fmt::format("{} bytes", length));
  }
  const std::span<const uint8_t> bytes(p_, length);
  p_ += length;
  return integer_from_bytes(bytes);
}

Value Machine::integer_line() {
  const std::string_view digits = line();
  if (digits == "00" || digits == "01") return Value::boolean(digits == "01");
  Value value;
  if (!integer_from_decimal(digits, value)) throw error(Exit::damaged, "integer in pickle is not one");
  return value;
}

Value Machine::long_line() {
  std::string_view digits = line();
  if (digits.ends_with('L')) digits.remove_suffix(1);
  Value value;
  if (!integer_from_decimal(digits, value)) throw error(Exit::damaged, "integer in pickle is not one");
  return value;
}

Value Machine::real_line() {
  const std::string_view digits = line();
  double value = 0;
  const auto [stop, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (status != std::errc() || stop != digits.data() + digits.size()) {
    throw error(Exit::damaged, "number in pickle is not one");
  }
  return Value::real(value);
}

Value Machine::escaped_string() {
  const auto raw = unescape_string(line());
  if (!raw) throw error(Exit::damaged, "string in pickle is not quoted as Python does");
  return python2_string(*raw);
}

Value Machine::escaped_unicode() {
  const auto utf8 = unescape_unicode(line());
  if (!utf8) throw error(Exit::damaged, "string in pickle is not escaped as Python does");
  return Value::string(*utf8);
}

// ---- values that go into others

void Machine::make_node(Value& value) {
  const auto kind = static_cast<Kind>(value.token_index());
  value = kind == Kind::dict ? Value::mapping(kind) : Value::sequence(kind, {});
}

uint32_t Machine::settle_from(size_t first) {
  uint32_t height = 0;
  Value* const end = stack_.data() + stack_.size();
  for (Value* v = stack_.data() + first; v != end; ++v) height = std::max(height, settle(*v));
  return height;
}

void Machine::raise(Value& holder, uint32_t height) const {
  if (height > limits_.depth) too_deep();
  ValueNode* node = holder.mutable_base();
  if (node != nullptr && has_children(holder.kind()) && node->height < height) node->height = static_cast<uint16_t>(height);
}

Value& Machine::open(Value& value) {
  make(value);
  const ValueNode* node = value.mutable_base();
  if (node != nullptr && node->closed) throw error(Exit::unsupported, "value in pickle contains itself");
  return value;
}

Value Machine::sequence(Kind kind, size_t first) {
  const uint32_t height = settle_from(first);
  const auto begin = std::make_move_iterator(stack_.begin() + static_cast<ptrdiff_t>(first));
  Value value = Value::sequence(kind, std::vector<Value>(begin, std::make_move_iterator(stack_.end())));
  drop(first);
  raise(value, height);
  return value;
}

Value Machine::size(size_t first) {
  if (used_sizes_.empty()) return sequence(Kind::size, first);
  Value value = std::move(used_sizes_.back());
  used_sizes_.pop_back();
  auto& items = value.mutable_items();
  items.assign(stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
  drop(first);
  return value;
}

void Machine::drop_fields(size_t first) {
  constexpr size_t kEnough = 8;
  Value* const end = stack_.data() + stack_.size();
  for (Value* v = stack_.data() + first; v != end; ++v) {
    if (!v->is(Kind::size) || used_sizes_.size() == kEnough) continue;
    if (ValueNode* node = v->take_if_unique()) {
      node->closed = false;
      node->height = 0;
      used_sizes_.push_back(Value::adopt(node));
    }
  }
  drop(first);
}

void Machine::append(size_t target, bool to_set) {
  const uint32_t height = settle_from(target + 1);
  Value& holder = open(stack_[target]);
  std::vector<Value>* items = nullptr;
  if (holder.is(to_set ? Kind::set : Kind::list)) {
    items = &holder.mutable_items();
  } else if (holder.is(Kind::object)) {
    items = &holder.mutable_node<ObjectNode>().items;
  } else {
    throw error(Exit::damaged, "items in pickle for something that is no list");
  }
  items->insert(items->end(), std::make_move_iterator(stack_.begin() + static_cast<ptrdiff_t>(target) + 1),
                std::make_move_iterator(stack_.end()));
  drop(target + 1);
  raise(stack_[target], height);
}

void Machine::set_items(size_t target) {
  const size_t count = stack_.size() - target - 1;
  if (count % 2 != 0) throw error(Exit::damaged, "key without a value in pickle");
  if (is_fresh(stack_[target]) && build_at_once(target)) return;
  const uint32_t height = settle_from(target + 1);
  Value& holder = open(stack_[target]);
  std::vector<Entry>* entries = nullptr;
  if (holder.is_mapping()) {
    entries = &holder.mutable_entries();
  } else if (holder.is(Kind::object)) {
    entries = &holder.mutable_node<ObjectNode>().entries;
  } else {
    throw error(Exit::damaged, "items in pickle for something that is no dict");
  }
  if (entries->empty()) entries->reserve(count / 2);
  for (size_t i = target + 1; i < stack_.size(); i += 2) entries->push_back({std::move(stack_[i]), std::move(stack_[i + 1])});
  drop(target + 1);
  raise(stack_[target], height);
}

// A tuple of arguments that is called at once is not made: its parts are the arguments, where they lie.
void Machine::tuple(size_t first) {
  uint64_t memoized = memoized_;
  const uint8_t* next = skip_unfetched_puts(p_, memoized);
  if (*next == kTuple1 && size_at_once(first, next, memoized)) return;
  if (*next != kReduce && *next != kNewObj) {
    push(sequence(Kind::tuple, first));
    return;
  }
  if (first <= fence_) underflow();
  Value* const end = stack_.data() + stack_.size();
  for (Value* v = stack_.data() + first; v != end; ++v) close(*v);
  memoized_ = memoized;
  at_ = next;
  p_ = next + 1;
  call(first - 1, Args(stack_).subspan(first), *next == kNewObj, Value());
}

// torch.Size((2, 3)): the inner tuple's TUPLE1 lies at `next`.
bool Machine::size_at_once(size_t first, const uint8_t* next, uint64_t memoized) {
  next = skip_unfetched_puts(next + 1, memoized);
  if (*next != kReduce || first <= fence_ || !is_role(stack_[first - 1], PythonRole::size)) return false;
  const Value* const end = stack_.data() + stack_.size();
  for (const Value* v = stack_.data() + first; v != end; ++v) {
    if (!v->is(Kind::integer)) return false;
  }
  memoized_ = memoized;
  p_ = next + 1;
  stack_[first - 1] = size(first);
  return true;
}

}  // namespace fsdpctl::pickle
