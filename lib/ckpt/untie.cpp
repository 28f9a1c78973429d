#include "lib/ckpt/untie.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <unordered_map>

#include "lib/ckpt/parts.h"

namespace fsdpctl {
namespace {

// Rebuilds containers above a further leaf of a tensor. A container that stands at two places is copied for each.
class Untier {
 public:
  explicit Untier(const Checkpoint& from) : from_(from), met_(from.tensors.size(), false) {}

  // nullopt where the value stays as it is.
  std::optional<Value> edit(const Value& v) {
    if (v.is(Kind::tensor)) return edit_tensor(v);
    if (is_leaf(v)) return std::nullopt;
    return v.is_mapping() ? edit_mapping(v) : edit_sequence(v);
  }

  std::vector<TensorIndex> copies;   // the original of each new tensor, which are numbered on from the last old one

 private:
  std::optional<Value> edit_tensor(const Value& v) {
    TensorLeaf leaf = v.as_tensor();
    if (!met_[leaf.index]) {
      met_[leaf.index] = true;
      return std::nullopt;
    }
    copies.push_back(leaf.index);
    leaf.index = static_cast<TensorIndex>(from_.tensors.size() + copies.size() - 1);
    return Value::tensor(leaf, v.tensor_attributes());
  }

  std::optional<Value> edit_mapping(const Value& v) {
    std::optional<std::vector<Entry>> made;
    for (size_t i = 0; i < v.entries().size(); ++i) {
      std::optional<Value> value = edit(v.entries()[i].value);
      if (!value) continue;
      if (!made) made = v.entries();
      (*made)[i].value = *std::move(value);
    }
    if (!made) return std::nullopt;
    Value mapping = Value::mapping(v.kind(), *std::move(made));
    mapping.mutable_node<MappingNode>().attributes = v.node<MappingNode>().attributes;
    return mapping;
  }

  std::optional<Value> edit_sequence(const Value& v) {
    std::optional<std::vector<Value>> made;
    for (size_t i = 0; i < v.items().size(); ++i) {
      std::optional<Value> item = edit(v.items()[i]);
      if (!item) continue;
      if (!made) made = v.items();
      (*made)[i] = *std::move(item);
    }
    if (!made) return std::nullopt;
    return Value::sequence(v.kind(), *std::move(made));
  }

  const Checkpoint& from_;
  std::vector<bool> met_;
};

std::unordered_map<std::string, std::string> casts_by_key(const std::vector<Change>& changes) {
  std::unordered_map<std::string, std::string> casts;
  for (const Change& change : changes) {
    if (change.kind == "cast") casts.emplace(change.key, change.detail);
  }
  return casts;
}

}  // namespace

Checkpoint untied(const Checkpoint& checkpoint, std::vector<Change>& changes) {
  Untier untier(checkpoint);
  std::optional<Value> tree = untier.edit(checkpoint.tree);
  Checkpoint out = checkpoint;
  if (!tree) return out;
  out.tree = *std::move(tree);
  for (const TensorIndex original : untier.copies) {
    const auto copy = static_cast<TensorIndex>(out.tensors.size());
    out.tensors.push_back(checkpoint.tensors[original]);
    for (Piece piece : checkpoint.pieces_of(original)) {
      piece.tensor = copy;
      out.pieces.push_back(piece);
    }
  }
  FindingSink strict;
  out.finish(strict);
  const auto casts = casts_by_key(changes);
  for (size_t i = 0; i < untier.copies.size(); ++i) {
    const std::string original(out.tensors[untier.copies[i]].key), copy(out.tensors[checkpoint.tensors.size() + i].key);
    changes.push_back({"copied", copy, fmt::format("tied to {}, and written once more", original)});
    if (const auto cast = casts.find(original); cast != casts.end()) changes.push_back({"cast", copy, cast->second});
  }
  return out;
}

}  // namespace fsdpctl
