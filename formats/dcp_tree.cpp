#include "formats/dcp_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace fsdpctl {
namespace {

constexpr size_t kMaxDepth = 1000;
constexpr uint64_t kMaxHoles = 1'000'000;

bool same_key(const DcpPathElement& a, const DcpPathElement& b) {
  if (a.is_key() != b.is_key()) return false;
  return a.is_key() ? a.text == b.text || a.key() == b.key() : a.index == b.index;
}

std::string element_text(const DcpPathElement& e) { return e.is_key() ? std::string(e.key()) : std::to_string(e.index); }

}  // namespace

PathTree::PathTree() : nodes_(1), index_(1024) { nodes_[0].shape = Shape::mapping; }

size_t PathTree::slot(uint32_t parent, const DcpPathElement& key) const {
  const size_t text = key.is_key() ? std::hash<std::string_view>()(key.key()) : key.index;
  size_t at = (text ^ (parent * 0x9E3779B97F4A7C15u)) & (index_.size() - 1);
  while (index_[at] != 0) {
    const Node& node = nodes_[index_[at]];
    if (node.parent == parent && same_key(node.key, key)) break;
    at = (at + 1) & (index_.size() - 1);
  }
  return at;
}

void PathTree::grow() {
  index_.assign(2 * index_.size(), 0);
  for (uint32_t n = 1; n < nodes_.size(); ++n) index_[slot(nodes_[n].parent, nodes_[n].key)] = n;
}

uint32_t PathTree::child(uint32_t parent, const DcpPathElement& key) {
  const Shape wanted = key.is_key() ? Shape::mapping : Shape::list;
  Shape& shape = nodes_[parent].shape;
  if (shape == Shape::unknown) shape = wanted;
  if (shape != wanted) {
    throw Error(Exit::damaged, "paths of the state dict contradict each other").key(path_text(parent));
  }
  const size_t at = slot(parent, key);
  if (index_[at] != 0) return index_[at];
  const auto made = static_cast<uint32_t>(nodes_.size());
  index_[at] = made;
  Node node;
  node.key = key;
  node.parent = parent;
  nodes_.push_back(std::move(node));
  Node& holder = nodes_[parent];
  (holder.children == 0 ? holder.first_child : nodes_[holder.last_child].next) = made;
  holder.last_child = made;
  ++holder.children;
  if (2 * nodes_.size() > index_.size()) grow();
  return made;
}

void PathTree::put(std::span<const DcpPathElement> path, Value value) {
  if (path.empty() || path.size() > kMaxDepth) throw Error(Exit::damaged, "path of the state dict is empty or too long");
  uint32_t at = 0;
  bool shared = true;                        // so far the same as the path before
  for (size_t i = 0; i < path.size(); ++i) {
    shared = shared && i + 1 < last_.size() && same_key(nodes_[last_[i]].key, path[i]);
    if (shared) {
      at = last_[i];
      continue;
    }
    at = child(at, path[i]);
    last_.resize(i);
    last_.push_back(at);
  }
  last_.resize(path.size());
  Node& leaf = nodes_[at];
  if (leaf.shape != Shape::unknown) throw Error(Exit::damaged, "two values of the state dict have one path").key(path_text(at));
  leaf.shape = Shape::leaf;
  leaf.value = std::move(value);
}

std::string PathTree::path_text(uint32_t node) const {
  std::vector<uint32_t> up;
  for (uint32_t n = node; n != 0; n = nodes_[n].parent) up.push_back(n);
  std::string text;
  for (size_t i = up.size(); i-- > 0;) text += (text.empty() ? "" : ".") + element_text(nodes_[up[i]].key);
  return text;
}

Value PathTree::build_list(const Node& node, FindingSink& sink) {
  uint64_t length = 0;
  for (uint32_t c = node.first_child; c != 0; c = nodes_[c].next) length = std::max<uint64_t>(length, uint64_t{nodes_[c].key.index} + 1);
  holes_ += length - node.children;
  if (holes_ > kMaxHoles) throw Error(Exit::damaged, "list of the state dict has too many gaps").found_only(fmt::format("{}", holes_));
  std::vector<Value> items(length);
  for (uint32_t c = node.first_child; c != 0; c = nodes_[c].next) items[nodes_[c].key.index] = build(c, sink);
  return Value::sequence(Kind::list, std::move(items));
}

Value PathTree::build(uint32_t n, FindingSink& sink) {
  Node& node = nodes_[n];
  if (node.shape == Shape::leaf) return std::move(node.value);
  if (node.shape == Shape::list) {
    if (node.children == 0) return Value::sequence(Kind::list, {});
    const uint64_t before = holes_;
    Value list = build_list(node, sink);
    if (holes_ != before && list.items().size() > node.children) {
      sink.report(warning("list has elements that were not saved: None stands for them")
                      .key(path_text(n))
                      .saw(fmt::format("{} elements", list.items().size()), fmt::format("{}", node.children)));
    }
    return list;
  }
  std::vector<Entry> entries;
  entries.reserve(node.children);
  for (uint32_t c = node.first_child; c != 0; c = nodes_[c].next) {
    entries.push_back({Value::string(nodes_[c].key.key()), build(c, sink)});
  }
  return Value::mapping(Kind::dict, std::move(entries));
}

Value PathTree::finish(FindingSink& sink) { return build(0, sink); }

}  // namespace fsdpctl
