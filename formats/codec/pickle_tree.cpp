// What can be judged only of a finished tree: its size with sharing undone, and the keys of its dicts.
#include <fmt/format.h>

#include <bit>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/codec/pickle_machine.h"

namespace fsdpctl::pickle {
namespace {

// The i-th value inside another, null behind the last one.
const Value* child(const Value& value, size_t i) {
  const auto entry = [&i](const std::vector<Entry>& entries) -> const Value* {
    if (i >= entries.size() * 2) {
      i -= entries.size() * 2;
      return nullptr;
    }
    return i % 2 == 0 ? &entries[i / 2].key : &entries[i / 2].value;
  };
  if (value.is_sequence()) return i < value.items().size() ? &value.items()[i] : nullptr;
  if (value.is_mapping()) {
    if (const Value* v = entry(value.entries())) return v;
    return i == 0 ? &value.node<MappingNode>().attributes : nullptr;
  }
  if (value.is(Kind::tensor)) return i == 0 ? &value.node<TensorNode>().attributes : nullptr;
  if (!value.is(Kind::object)) return nullptr;
  const auto& object = value.node<ObjectNode>();
  const Value* const parts[] = {&object.callable, &object.args, &object.kwargs, &object.state};
  if (i < std::size(parts)) return parts[i];
  i -= std::size(parts);
  if (const Value* v = entry(object.entries)) return v;
  return i < object.items.size() ? &object.items[i] : nullptr;
}

bool has_children(const Value& value) {
  return value.identity() != nullptr &&
         (value.is_sequence() || value.is_mapping() || value.is(Kind::tensor) || value.is(Kind::object));
}

uint64_t mix(uint64_t hash, uint64_t with) { return (hash ^ with) * 0x9E3779B97F4A7C15 + (hash >> 32); }

// The hash of a key that Python compares by value; nullopt for one that it compares by identity, as objects mostly are.
// Error(damaged) for what Python could not use as a key, or in a set.
std::optional<uint64_t> key_hash(const Value& key) {
  const auto kind = static_cast<uint64_t>(key.kind());
  switch (key.kind()) {
    case Kind::list: case Kind::set: case Kind::bytearray: case Kind::dict: case Kind::ordered_dict: case Kind::counter:
    case Kind::default_dict: case Kind::numpy_array:
      throw Error(Exit::damaged, "key in pickle that cannot be one");
    case Kind::none: return kind;
    case Kind::boolean: return mix(kind, key.as_boolean());
    case Kind::integer: return mix(kind, static_cast<uint64_t>(key.as_integer()));
    case Kind::real: return mix(kind, std::bit_cast<uint64_t>(key.as_real()));
    case Kind::string: case Kind::bytes: case Kind::big_integer:
      return mix(kind, std::hash<std::string_view>()(key.text()));
    case Kind::tuple: case Kind::frozenset: case Kind::size: {
      std::optional<uint64_t> hash = kind;
      for (const Value& item : key.items()) {
        const auto part = key_hash(item);
        hash = hash && part ? std::optional(mix(*hash, *part)) : std::nullopt;
      }
      return hash;
    }
    default: return std::nullopt;
  }
}

// Finds keys that a dict has twice. Readers that take the first one and readers that take the last one would disagree.
class KeyCheck {
 public:
  void check(const std::vector<Entry>& entries) {
    table_.assign(std::bit_ceil(entries.size() * 2 + 1), kEmpty);
    for (uint32_t i = 0; i < entries.size(); ++i) {
      if (const auto hash = key_hash(entries[i].key)) insert(entries, i, *hash);
    }
  }

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;
  static constexpr int kProbes = 1000;   // more than chance ever needs; made-up collisions must not cost quadratic time

  void insert(const std::vector<Entry>& entries, uint32_t index, uint64_t hash) {
    const Value& key = entries[index].key;
    size_t at = hash ^ hash >> 32;
    for (int probe = 0; probe < kProbes; ++probe, ++at) {
      uint32_t& slot = table_[at & (table_.size() - 1)];
      if (slot == kEmpty) {
        slot = index;
        return;
      }
      if (equal(entries[slot].key, key)) {
        throw Error(Exit::damaged, "key twice in one dict of a pickle").found_only(key_text(key));
      }
    }
    throw Error(Exit::unsupported, "keys in pickle collide");
  }

  std::vector<uint32_t> table_;
};

// Bytes of what a value holds itself.
uint64_t own_text(const Value& value) {
  switch (value.kind()) {
    case Kind::string: case Kind::bytes: case Kind::bytearray: case Kind::big_integer: return value.text().size();
    case Kind::numpy_scalar: return value.node<NumpyScalarNode>().raw.size();
    case Kind::numpy_array: return value.node<NumpyArrayNode>().raw.size();
    case Kind::storage: return value.node<StorageNode>().storage_class.size();
    case Kind::global: return value.node<GlobalNode>().module.size() + value.node<GlobalNode>().name.size();
    default: return value.is_constant() ? value.text().size() : 0;
  }
}

uint64_t product(uint64_t a, uint64_t b) {   // or the largest number
  uint64_t result;
  return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

class TreeCheck {
 public:
  TreeCheck(uint32_t depth, const TreeSize& limit) : depth_(depth), limit_(limit) {}

  TreeSize check(const Value& root) {
    enter(root);
    while (!path_.empty()) {
      Frame& frame = path_.back();
      const Value* next = child(*frame.value, frame.next++);
      if (next == nullptr) {
        leave();
      } else if (!has_children(*next)) {
        add(frame, {1, own_text(*next)});
      } else if (const auto seen = sizes_.find(next->identity()); seen != sizes_.end()) {
        add(frame, seen->second);
      } else {
        enter(*next);
      }
    }
    return size_;
  }

 private:
  struct Frame {
    const Value* value;
    size_t next;
    TreeSize size;      // so far, itself included
    uint64_t key = 0;   // text of the last key
  };

  void enter(const Value& value) {
    if (path_.size() > depth_) throw Error(Exit::unsupported, "pickle nested too deeply");
    if (value.is_mapping()) keys_.check(value.entries());
    if (value.is(Kind::object)) keys_.check(value.node<ObjectNode>().entries);
    if (value.is(Kind::set) || value.is(Kind::frozenset)) {
      for (const Value& item : value.items()) key_hash(item);
    }
    path_.push_back({&value, 0, {1, 0}});
  }

  void leave() {
    const Frame done = path_.back();
    path_.pop_back();
    const bool shared = done.value->node<ValueNode>().references.load(std::memory_order_relaxed) > 1;
    if (shared) sizes_[done.value->identity()] = done.size;
    if (path_.empty()) size_ = done.size;
    else add(path_.back(), done.size);
  }

  // Each value has a path of its own: the text of the key above it counts for all of them.
  void add(Frame& frame, const TreeSize& size) {
    const bool mapping = frame.value->is_mapping(), key = mapping && frame.next % 2 == 1;   // `next` is past it
    if (key) frame.key = size.text;
    const uint64_t names = key ? 0 : product(size.values, 1 + (mapping ? frame.key : 0));
    if (size.values > limit_.values - std::min(limit_.values, frame.size.values)) grown(limit_.values, "values");
    const uint64_t left = limit_.text - std::min(limit_.text, frame.size.text);
    if (names > left || size.text > left - names) grown(limit_.text, "bytes");
    frame.size.values += size.values;
    frame.size.text += names + size.text;
  }

  [[noreturn]] static void grown(uint64_t limit, const char* unit) {
    throw Error(Exit::unsupported, "pickle grows too large when shared values are written out")
        .saw(fmt::format("at most {} {}", limit, unit), "more");
  }

  uint32_t depth_;
  TreeSize limit_;
  TreeSize size_;
  std::vector<Frame> path_;
  std::unordered_map<const void*, TreeSize> sizes_;   // of shared values
  KeyCheck keys_;
};

}  // namespace

TreeSize check_tree(const Value& tree, uint32_t depth, const TreeSize& limit) {
  return has_children(tree) ? TreeCheck(depth, limit).check(tree) : TreeSize{1, own_text(tree)};
}

}  // namespace fsdpctl::pickle
