#include "lib/ckpt/renumber.h"

#include <functional>
#include <unordered_map>
#include <unordered_set>

namespace fsdpctl {
namespace {

bool holds_values(const Value& v) { return v.is_sequence() || v.is_mapping() || v.is(Kind::object); }

// Every value right below a container or inside an inert object.
void for_children(const Value& v, const std::function<void(const Value&)>& visit) {
  const auto entries = [&](const std::vector<Entry>& list) {
    for (const Entry& e : list) visit(e.key), visit(e.value);
  };
  if (v.is_sequence()) {
    for (const Value& item : v.items()) visit(item);
  } else if (v.is_mapping()) {
    entries(v.entries());
    visit(v.node<MappingNode>().attributes);
  } else if (v.is(Kind::object)) {
    const auto& o = v.node<ObjectNode>();
    for (const Value* part : {&o.callable, &o.args, &o.kwargs, &o.state}) visit(*part);
    for (const Value& item : o.items) visit(item);
    entries(o.entries);
  }
}

class Marker {
 public:
  explicit Marker(size_t tensors) : used_(tensors, false) {}

  void mark(const Value& v) {
    if (v.is(Kind::tensor)) {
      used_.at(v.as_tensor().index) = true;
      mark(v.tensor_attributes());
    } else if (v.is(Kind::storage)) {
      used_.at(v.node<StorageNode>().index) = true;
    } else if (holds_values(v) && met_.insert(v.identity()).second) {
      for_children(v, [this](const Value& child) { mark(child); });
    }
  }
  const std::vector<bool>& used() const { return used_; }

 private:
  std::vector<bool> used_;
  std::unordered_set<const void*> met_;
};

class Renumberer {
 public:
  explicit Renumberer(const std::vector<TensorIndex>& numbers) : numbers_(numbers) {}

  Value copy(const Value& v) {
    if (v.is(Kind::tensor)) {
      TensorLeaf leaf = v.as_tensor();
      leaf.index = number(leaf.index);
      return Value::tensor(leaf, copy(v.tensor_attributes()));
    }
    if (!v.is(Kind::storage) && !holds_values(v)) return v;
    if (const auto known = made_.find(v.identity()); known != made_.end()) return known->second;
    Value made = copy_node(v);
    made_.emplace(v.identity(), made);
    return made;
  }

 private:
  TensorIndex number(TensorIndex old) const {
    if (old < numbers_.size()) return numbers_[old];
    throw Error(Exit::damaged, "tree refers to a tensor that is not there").found_only(std::to_string(old));
  }

  Value copy_node(const Value& v) {
    if (v.is(Kind::storage)) {
      const auto& storage = v.node<StorageNode>();
      return Value::storage(number(storage.index), storage.storage_class);
    }
    if (v.is_sequence()) return Value::sequence(v.kind(), copy(v.items()));
    if (v.is_mapping()) {
      Value made = Value::mapping(v.kind(), copy(v.entries()));
      made.mutable_node<MappingNode>().attributes = copy(v.node<MappingNode>().attributes);
      return made;
    }
    const auto& from = v.node<ObjectNode>();
    auto* to = new ObjectNode;
    Value made = Value::adopt(to);
    to->how = from.how;
    to->has_state = from.has_state;
    to->callable = copy(from.callable);
    to->args = copy(from.args);
    to->kwargs = copy(from.kwargs);
    to->state = copy(from.state);
    to->items = copy(from.items);
    to->entries = copy(from.entries);
    return made;
  }

  std::vector<Value> copy(const std::vector<Value>& items) {
    std::vector<Value> made;
    made.reserve(items.size());
    for (const Value& item : items) made.push_back(copy(item));
    return made;
  }

  std::vector<Entry> copy(const std::vector<Entry>& entries) {
    std::vector<Entry> made;
    made.reserve(entries.size());
    for (const Entry& e : entries) made.push_back({copy(e.key), copy(e.value)});
    return made;
  }

  const std::vector<TensorIndex>& numbers_;
  std::unordered_map<const void*, Value> made_;
};

}  // namespace

Value renumbered(const Value& value, const std::vector<TensorIndex>& numbers) { return Renumberer(numbers).copy(value); }

Checkpoint with_tree(const Checkpoint& checkpoint, Value tree, std::vector<TensorIndex>* numbers_out) {
  Marker marker(checkpoint.tensors.size());
  marker.mark(tree);
  std::vector<TensorIndex> numbers(checkpoint.tensors.size(), kNoTensor);
  TensorIndex next = 0;
  for (size_t t = 0; t < numbers.size(); ++t) {
    if (marker.used()[t]) numbers[t] = next++;
  }

  Checkpoint out = checkpoint;
  out.tree = next == numbers.size() ? std::move(tree) : renumbered(tree, numbers);
  out.tensors.clear();
  out.pieces.clear();
  for (TensorIndex t = 0; t < numbers.size(); ++t) {
    if (numbers[t] == kNoTensor) continue;
    out.tensors.push_back(checkpoint.tensors[t]);
    for (Piece piece : checkpoint.pieces_of(t)) {
      piece.tensor = numbers[t];
      out.pieces.push_back(piece);
    }
  }
  FindingSink strict;
  out.finish(strict);
  if (numbers_out != nullptr) *numbers_out = std::move(numbers);
  return out;
}

}  // namespace fsdpctl
