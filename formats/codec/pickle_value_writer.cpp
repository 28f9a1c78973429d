// Values as opcodes: the recursive half of PickleWriter.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "formats/codec/big_integer.h"
#include "formats/codec/numpy_pickle.h"
#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_writer.h"
#include "formats/codec/pickle_writer_state.h"
#include "lib/base/finding.h"

namespace fsdpctl {

using namespace pickle;

namespace {

constexpr size_t kBatch = 1000;          // items per APPENDS and SETITEMS, as Python's pickler writes them
constexpr int kDepth = 1000;             // PickleLimits::depth of readers
constexpr size_t kShortString = 16;      // shared by its text: "exp_avg", "momentum_buffer"
constexpr size_t kTinyString = 2;        // not worth a memo entry

bool is_short_string(const Value& v) { return v.is(Kind::string) && v.text().size() <= kShortString; }

// Written as a global, which has a memo of its own.
bool is_named(const Value& v) {
  return v.is(Kind::global) || v.is(Kind::dtype) || v.is(Kind::memory_format) || v.is(Kind::qscheme);
}

// Bytes as the characters of the same numbers: how protocol 2 spells bytes.
std::string latin1_text(std::string_view raw) {
  std::string utf8;
  utf8.reserve(raw.size() + raw.size() / 2);
  for (char c : raw) {
    const auto b = static_cast<unsigned char>(c);
    if (b >= 0x80) utf8 += static_cast<char>(0xC0 | b >> 6);
    utf8 += static_cast<char>(b < 0x80 ? b : 0x80 | (b & 0x3F));
  }
  return utf8;
}

}  // namespace

// ---- what occurs more than once

uint32_t* PickleWriter::State::memo_of(const Value& v) {
  // A node with one reference cannot occur twice.
  if (v.identity() == nullptr || v.node<ValueNode>().references.load(std::memory_order_relaxed) < 2) return nullptr;
  const auto at = nodes.find(v.identity());
  return at == nodes.end() ? nullptr : &at->second;
}

void PickleWriter::State::plan(const Value& v) {
  if (v.identity() == nullptr || is_named(v)) return;
  if (is_short_string(v)) {
    if (v.text().size() <= kTinyString) return;
    const auto at = strings.find(v.text());
    if (at == strings.end()) {
      strings.emplace(arena.store(v.text()), kOnce);
    } else if (at->second == kOnce) {
      at->second = kNotYet;
    }
    return;
  }
  if (v.node<ValueNode>().references.load(std::memory_order_relaxed) > 1) {
    const auto [at, is_new] = nodes.try_emplace(v.identity(), kOnce);
    if (!is_new) {
      at->second = kNotYet;
      return;
    }
  }
  if (++depth > kDepth + 1) throw Error(Exit::unsupported, "value nested too deeply for a pickle");
  plan_inside(v);
  --depth;
}

void PickleWriter::State::plan_inside(const Value& v) {
  if (v.is_sequence()) {
    for (const Value& item : v.items()) plan(item);
  } else if (v.is_mapping()) {
    plan_entries(v.entries());
    plan(v.node<MappingNode>().attributes);
  } else if (v.is(Kind::tensor)) {
    plan(v.node<TensorNode>().attributes);
  } else if (v.is(Kind::object)) {
    const auto& object = v.node<ObjectNode>();
    for (const Value* part : {&object.callable, &object.args, &object.kwargs, &object.state}) plan(*part);
    for (const Value& item : object.items) plan(item);
    plan_entries(object.entries);
  }
}

void PickleWriter::State::plan_entries(const std::vector<Entry>& entries) {
  for (const Entry& e : entries) {
    plan(e.key);
    plan(e.value);
  }
}

// ---- opcodes

class PickleWriter::ValueWriter {
 public:
  explicit ValueWriter(PickleWriter& out) : out_(out), state_(*out.state_) {}

  void write(const Value& v) {
    switch (v.kind()) {
      case Kind::none: return out_.none();
      case Kind::boolean: return out_.boolean(v.as_boolean());
      case Kind::integer: return out_.integer(v.as_integer());
      case Kind::real: return out_.real(v.as_real());
      case Kind::string: return string(v);
      case Kind::tensor: return state_.emitter.tensor(v, out_);
      case Kind::token: throw Error(Exit::refused, "value that only its reader knows");
      default: node(v);
    }
  }

 private:
  void string(const Value& v) {
    if (!is_short_string(v)) return node(v);
    const auto at = state_.strings.find(v.text());
    if (at == state_.strings.end() || at->second == State::kOnce) return out_.unique_string(v.text());
    out_.string(v.text());
  }

  void node(const Value& v) {
    uint32_t* memo = state_.memo_of(v);
    if (memo != nullptr && State::is_memoised(*memo)) return out_.memo_get(*memo);
    memo_ = memo != nullptr && *memo == State::kNotYet ? memo : nullptr;
    if (v.is_mapping() || v.is(Kind::list) || v.is(Kind::object)) return mutable_node(v);
    uint32_t* const after = std::exchange(memo_, nullptr);   // others cannot change: memoised when complete
    plain_node(v);
    memo_ = after;
    created();
  }

  // The value at hand lies on the stack, perhaps still empty.
  void created() {
    if (memo_ != nullptr) *memo_ = out_.memo_put();
    memo_ = nullptr;
  }

  void mutable_node(const Value& v) {
    switch (v.kind()) {
      case Kind::list:
        out_.op(kEmptyList);
        created();
        return items(v.items());
      case Kind::dict:
        out_.op(kEmptyDict);
        created();
        return entries(v.entries());
      case Kind::ordered_dict: return ordered_dict(v);
      case Kind::counter: return counter(v);
      case Kind::default_dict: return default_dict(v);
      default: return object(v.node<ObjectNode>());
    }
  }

  void plain_node(const Value& v) {
    switch (v.kind()) {
      case Kind::string: return out_.unique_string(v.text());
      case Kind::big_integer: return big_integer(v.text());
      case Kind::complex: return complex(v);
      case Kind::bytes: return bytes(v.text());
      case Kind::bytearray: return bytearray(v.text());
      case Kind::tuple: return tuple(v.items());
      case Kind::set: return collection("set", v.items());
      case Kind::frozenset: return collection("frozenset", v.items());
      case Kind::size:
        out_.global("torch", "Size");
        tuple(v.items());
        return call(1);
      case Kind::dtype: case Kind::memory_format: case Kind::qscheme: return constant(v.text());
      case Kind::device: return device(v.text());
      case Kind::layout:
        out_.global("torch.serialization", "_get_layout");
        out_.string(v.text());
        return call(1);
      case Kind::numpy_scalar: case Kind::numpy_array: return write(numpy_object(v));
      case Kind::storage: return storage(v.node<StorageNode>());
      case Kind::global: return out_.global(v.node<GlobalNode>().module, v.node<GlobalNode>().name);
      default: throw Error(Exit::refused, "value that a pickle cannot hold");
    }
  }

  // The arguments lie on the stack, the callable below them.
  void call(int arguments) {
    const uint8_t tuples[] = {kEmptyTuple, kTuple1, kTuple2, kTuple3};
    out_.op(tuples[arguments]);
    out_.op(kReduce);
  }

  void items(const std::vector<Value>& list) {
    for (size_t i = 0; i < list.size(); i += kBatch) {
      const size_t end = std::min(list.size(), i + kBatch);
      const bool one = end - i == 1;
      if (!one) out_.mark();
      for (size_t k = i; k < end; ++k) write(list[k]);
      out_.op(one ? kAppend : kAppends);
    }
  }

  void entries(const std::vector<Entry>& list) {
    for (size_t i = 0; i < list.size(); i += kBatch) {
      const size_t end = std::min(list.size(), i + kBatch);
      const bool one = end - i == 1;
      if (!one) out_.mark();
      for (size_t k = i; k < end; ++k) {
        write(list[k].key);
        write(list[k].value);
      }
      out_.op(one ? kSetItem : kSetItems);
    }
  }

  void tuple(const std::vector<Value>& parts) {
    const uint8_t tuples[] = {kEmptyTuple, kTuple1, kTuple2, kTuple3};
    if (parts.size() > 3) out_.mark();
    for (const Value& part : parts) write(part);
    out_.op(parts.size() > 3 ? static_cast<uint8_t>(kTuple) : tuples[parts.size()]);
  }

  void collection(std::string_view name, const std::vector<Value>& members) {
    out_.global("builtins", name);
    out_.op(kEmptyList);
    items(members);
    call(1);
  }

  void ordered_dict(const Value& v) {
    out_.global("collections", "OrderedDict");
    call(0);
    created();
    entries(v.entries());
    const Value& attributes = v.node<MappingNode>().attributes;
    if (attributes.is(Kind::none)) return;
    write(attributes);
    out_.op(kBuild);
  }

  void counter(const Value& v) {
    uint32_t* const memo = std::exchange(memo_, nullptr);
    out_.global("collections", "Counter");
    out_.op(kEmptyDict);
    entries(v.entries());
    call(1);
    memo_ = memo;
    created();
  }

  void default_dict(const Value& v) {
    uint32_t* const memo = std::exchange(memo_, nullptr);
    const Value& factory = v.node<MappingNode>().attributes;
    out_.global("collections", "defaultdict");
    if (!factory.is(Kind::none)) write(factory);
    call(factory.is(Kind::none) ? 0 : 1);
    memo_ = memo;
    created();
    entries(v.entries());
  }

  void big_integer(std::string_view decimal) {
    const std::string raw = integer_to_bytes(decimal);
    if (raw.size() < 256) {
      out_.op(kLong1);
      out_.op(static_cast<uint8_t>(raw.size()));
    } else {
      out_.op(kLong4);
      out_.number(static_cast<uint32_t>(raw.size()));
    }
    *out_.out_ += raw;
  }

  void complex(const Value& v) {
    const auto [re, im] = v.as_complex();
    out_.global("builtins", "complex");
    out_.real(re);
    out_.real(im);
    call(2);
  }

  void bytes(std::string_view raw) {
    if (raw.empty()) {
      out_.global("builtins", "bytes");
      return call(0);
    }
    out_.global("_codecs", "encode");
    out_.unique_string(latin1_text(raw));
    out_.string("latin1");
    call(2);
  }

  void bytearray(std::string_view raw) {
    out_.global("builtins", "bytearray");
    if (!raw.empty()) bytes(raw);
    call(raw.empty() ? 0 : 1);
  }

  // "torch.float32"
  void constant(std::string_view text) {
    const size_t dot = text.rfind('.');
    if (dot == std::string_view::npos) throw Error(Exit::refused, "constant without a module").found_only(std::string(text));
    out_.global(text.substr(0, dot), text.substr(dot + 1));
  }

  // "cuda:1" as ('cuda', 1).
  void device(std::string_view text) {
    const size_t colon = text.rfind(':');
    int64_t index = 0;
    const std::string_view digits = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
    const bool has_index = std::from_chars(digits.data(), digits.data() + digits.size(), index).ec == std::errc() &&
                           fmt::format("{}", index) == digits;
    out_.global("torch", "device");
    out_.string(has_index ? text.substr(0, colon) : text);
    if (has_index) out_.integer(index);
    call(has_index ? 2 : 1);
  }

  void storage(const StorageNode& storage) { state_.emitter.storage(storage.index, storage.storage_class, out_); }

  void object(const ObjectNode& object) {
    uint32_t* const memo = std::exchange(memo_, nullptr);
    if (!object.kwargs.is(Kind::none)) {   // protocol 2 has no NEWOBJ_EX
      if (object.how != ObjectNode::How::newobj) throw Error(Exit::refused, "call that a pickle cannot hold");
      out_.global("copyreg", "__newobj_ex__");
      write(object.callable);
      write(object.args);
      write(object.kwargs);
      call(3);
    } else {
      write(object.callable);
      write(object.args);
      out_.op(object.how == ObjectNode::How::newobj ? kNewObj : kReduce);
    }
    memo_ = memo;
    created();
    items(object.items);
    entries(object.entries);
    if (!object.has_state) return;
    write(object.state);
    out_.op(kBuild);
  }

  PickleWriter& out_;
  State& state_;
  uint32_t* memo_ = nullptr;             // where the memo number of the value at hand goes
};

void PickleWriter::value(const Value& value) {
  const bool outermost = state_->depth == 0;
  if (outermost) state_->plan(value);
  ++state_->depth;
  ValueWriter(*this).write(value);
  --state_->depth;
  if (outermost) state_->nodes.clear();
}

}  // namespace fsdpctl
