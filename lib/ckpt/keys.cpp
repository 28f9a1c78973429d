#include "lib/ckpt/keys.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_set>

namespace fsdpctl {
namespace {

constexpr size_t kMostEqualKeys = 16;   // that are listed

// Meets whatever has a key, in one order: tensors at leaves and inside of them, and other leaves.
class KeyVisitor : public TreeVisitor {
 public:
  void leaf(std::string_view path, const Value& value) final {
    if (value.is(Kind::tensor)) {
      tensor(value.as_tensor().index, path, true);
      if (const Value attributes = value.tensor_attributes(); !attributes.is(Kind::none)) inside(path, attributes);
      return;
    }
    if (!value.is(Kind::storage)) other(path);
    if (may_hold_tensors(value)) inside(path, value);
  }

 protected:
  virtual void tensor(TensorIndex t, std::string_view path, bool leaf) = 0;
  virtual void other(std::string_view path) = 0;

 private:
  static bool may_hold_tensors(const Value& value) {
    return value.is_sequence() || value.is_mapping() || value.is(Kind::object) || value.is(Kind::storage) ||
           value.is(Kind::tensor);
  }

  // Tensors that no leaf shows: inside objects, counters, sets. Their keys extend the leaf's.
  void inside(std::string_view path, const Value& value) {
    if (value.is(Kind::tensor)) {
      tensor(value.as_tensor().index, path, false);
      return;
    }
    if (value.is(Kind::storage)) {
      tensor(value.node<StorageNode>().index, path, false);
      return;
    }
    if (!may_hold_tensors(value) || !seen_.insert(value.identity()).second) return;
    if (value.is_sequence()) {
      items(path, value.items());
    } else if (value.is_mapping()) {
      entries(path, value.entries());
      descend(path, "attributes", value.node<MappingNode>().attributes);
    } else {
      const auto& object = value.node<ObjectNode>();
      descend(path, "callable", object.callable);
      descend(path, "args", object.args);
      descend(path, "kwargs", object.kwargs);
      descend(path, "state", object.state);
      items(path, object.items);
      entries(path, object.entries);
    }
  }

  void descend(std::string_view path, std::string_view element, const Value& value) {
    if (!may_hold_tensors(value)) return;
    std::string longer(path);
    if (!longer.empty()) longer += '.';
    inside(longer += element, value);
  }

  void items(std::string_view path, const std::vector<Value>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (may_hold_tensors(values[i])) descend(path, std::to_string(i), values[i]);   // else no text for nothing
    }
  }

  void entries(std::string_view path, const std::vector<Entry>& list) {
    for (const Entry& e : list) {
      if (may_hold_tensors(e.value)) descend(path, key_text(e.key), e.value);
    }
  }

  std::unordered_set<const void*> seen_;
};

// Gives each tensor the path of its first leaf; further leaves become aliases.
class Namer final : public KeyVisitor {
 public:
  explicit Namer(Checkpoint& checkpoint) : checkpoint_(checkpoint), named_(checkpoint.tensors.size()) {
    hashes_.reserve(checkpoint.tensors.size());
  }

  void report_unnamed(FindingSink& sink) const {
    for (size_t t = 0; t < named_.size(); ++t) {
      if (named_[t]) continue;
      sink.report(error(Exit::damaged, "tensor is not in the tree").found_only(
          std::string(dtype_name(checkpoint_.tensors[t].dtype)) + " " + dims_text(checkpoint_.tensors[t].shape)));
    }
  }

  const std::vector<uint64_t>& hashes() const { return hashes_; }   // of all keys

 private:
  void tensor(TensorIndex t, std::string_view path, bool leaf) override {
    if (t >= named_.size()) throw Error(Exit::damaged, "tree refers to a tensor that is not there").key(std::string(path));
    if (named_[t] && !leaf) return;
    other(path);
    if (named_[t]) {
      checkpoint_.aliases.push_back({std::string(path), t});
      return;
    }
    named_[t] = true;
    std::string_view& key = checkpoint_.tensors[t].key;   // perhaps set by the format already
    if (key != path) key = checkpoint_.arena->store(path);
  }

  void other(std::string_view path) override { hashes_.push_back(std::hash<std::string_view>()(path)); }

  Checkpoint& checkpoint_;
  std::vector<bool> named_;
  std::vector<uint64_t> hashes_;
};

// Are all different for sure? "No" only means that somebody must look closer.
bool surely_different(const std::vector<uint64_t>& hashes) {
  constexpr size_t kMaxProbes = 64;   // keys made to collide end in the slower way, not in a slow table
  size_t slots = 16;
  while (slots < 2 * hashes.size()) slots *= 2;
  std::vector<uint32_t> table(slots, 0);
  for (const uint64_t hash : hashes) {
    const auto mark = static_cast<uint32_t>(hash >> 32) | 1;   // 0 is a free slot
    size_t probes = 0;
    for (size_t at = hash;; ++at) {
      uint32_t& slot = table[at & (slots - 1)];
      if (slot == mark || ++probes == kMaxProbes) return false;
      if (slot != 0) continue;
      slot = mark;
      break;
    }
  }
  return true;
}

// The keys in the order in which KeyVisitor meets them, those that Namer keeps.
class Lister final : public KeyVisitor {
 public:
  explicit Lister(size_t tensors) : met_(tensors) {}
  std::vector<std::string> keys;

 private:
  void tensor(TensorIndex t, std::string_view path, bool leaf) override {
    if (met_[t] && !leaf) return;
    met_[t] = true;
    other(path);
  }
  void other(std::string_view path) override { keys.emplace_back(path); }
  std::vector<bool> met_;
};

std::vector<std::string> list_keys(const Checkpoint& checkpoint, PathStyle style) {
  Lister lister(checkpoint.tensors.size());
  walk_tree(checkpoint.tree, lister, style);
  return std::move(lister.keys);
}

void find_equal_keys(Checkpoint& checkpoint, FindingSink& sink) {
  const std::vector<std::string> keys = list_keys(checkpoint, PathStyle::dotted);
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; });
  std::vector<std::string> places;
  size_t found = 0;
  for (size_t i = 1; i < order.size(); ++i) {
    const std::string& key = keys[order[i]];
    if (key != keys[order[i - 1]] || (i > 1 && key == keys[order[i - 2]]) || ++found > kMostEqualKeys) continue;
    if (places.empty()) places = list_keys(checkpoint, PathStyle::subscripts);
    const EqualKeys& equal = checkpoint.equal_keys.emplace_back(EqualKeys{key, places[order[i - 1]], places[order[i]]});
    sink.report(warning("two keys are the same text").key(equal.key).found_only(equal.first + " and " + equal.second));
  }
  if (found <= kMostEqualKeys) return;
  sink.report(warning("more keys are the same text").found_only(std::to_string(found - kMostEqualKeys) + " more"));
}

}  // namespace

void name_tensors(Checkpoint& checkpoint, FindingSink& sink) {
  checkpoint.aliases.clear();
  checkpoint.equal_keys.clear();
  bool different = false;
  {
    Namer namer(checkpoint);
    walk_tree(checkpoint.tree, namer);
    namer.report_unnamed(sink);
    different = surely_different(namer.hashes());
  }
  if (!different) find_equal_keys(checkpoint, sink);
}

}  // namespace fsdpctl
