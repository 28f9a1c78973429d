#include "formats/dcp_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <unordered_set>

namespace fsdpctl {
namespace {

constexpr size_t kMaxDepth = 1000;
constexpr uint64_t kMaxHoles = 65'536;

bool same_key(const DcpPathElement& a, const DcpPathElement& b) {
  if (a.is_key() != b.is_key()) return false;
  return a.is_key() ? a.text == b.text || a.key() == b.key() : a.index == b.index;
}

std::string element_text(const DcpPathElement& e) { return e.is_key() ? std::string(e.key()) : std::to_string(e.index); }

// Are the elements, joined by dots, this name?
bool joins_to(std::span<const DcpPathElement> path, std::string_view fqn) {
  for (const DcpPathElement& e : path) {
    char digits[20];
    std::string_view text = e.key();
    if (!e.is_key()) text = {digits, std::to_chars(digits, digits + sizeof digits, e.index).ptr};
    if (!fqn.starts_with(text)) return false;
    fqn.remove_prefix(text.size());
    if (&e == &path.back()) return fqn.empty();
    if (!fqn.starts_with('.')) return false;
    fqn.remove_prefix(1);
  }
  return false;
}

}  // namespace

PathTree::PathTree(size_t leaves) : nodes_(1), index_(1024) {
  nodes_.reserve(leaves + leaves / 8 + 16);
  nodes_[0].shape = Shape::mapping;
}

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
  index_.assign(4 * index_.size(), 0);
  for (uint32_t n = 1; n < nodes_.size(); ++n) {
    if (nodes_[n].shape != Shape::leaf) index_[slot(nodes_[n].parent, nodes_[n].key)] = n;
  }
}

// A new child.
uint32_t PathTree::add(uint32_t parent, const DcpPathElement& key) {
  const Shape wanted = key.is_key() ? Shape::mapping : Shape::list;
  Shape& shape = nodes_[parent].shape;
  if (shape == Shape::unknown) shape = wanted;
  if (shape != wanted) {
    throw Error(Exit::damaged, "paths of the state dict contradict each other").key(path_text(parent));
  }
  const auto made = static_cast<uint32_t>(nodes_.size());
  nodes_.emplace_back();
  nodes_.back().key = key;
  nodes_.back().parent = parent;
  Node& holder = nodes_[parent];
  (holder.children == 0 ? holder.first_child : nodes_[holder.last_child].next) = made;
  holder.last_child = made;
  ++holder.children;
  return made;
}

// The child of this key that is no leaf, a new one if it is new.
uint32_t PathTree::branch(uint32_t parent, const DcpPathElement& key) {
  if (const uint32_t known = index_[slot(parent, key)]; known != 0) return known;
  const uint32_t made = add(parent, key);
  nodes_[parent].has_branches = true;
  index_[slot(parent, key)] = made;
  if (2 * ++branches_ > index_.size()) grow();
  return made;
}

void PathTree::put(std::string_view fqn, std::span<const DcpPathElement> path, Value value) {
  if (path.empty() || path.size() > kMaxDepth) throw Error(Exit::damaged, "path of the state dict is empty or too long");
  named_by_path_ = named_by_path_ && joins_to(path, fqn);
  const std::span<const DcpPathElement> branches = path.first(path.size() - 1);
  uint32_t at = 0;
  size_t shared = 0;                         // with the path before
  for (; shared < std::min(branches.size(), last_.size()); ++shared) {
    if (!same_key(nodes_[last_[shared]].key, branches[shared])) break;
    at = last_[shared];
  }
  last_.resize(shared);
  for (const DcpPathElement& key : branches.subspan(shared)) last_.push_back(at = branch(at, key));
  const uint32_t leaf = add(at, path.back());
  nodes_[at].has_leaves = true;
  nodes_[leaf].shape = Shape::leaf;
  nodes_[leaf].value = std::move(value);
}

// Two children of one key: branches were looked up, leaves only if their names do not tell.
void PathTree::check_keys(uint32_t n) const {
  const Node& node = nodes_[n];
  if (!node.has_leaves || (named_by_path_ && !node.has_branches)) return;
  std::unordered_set<std::string> seen;
  seen.reserve(node.children);
  for (uint32_t c = node.first_child; c != 0; c = nodes_[c].next) {
    if (seen.insert(element_text(nodes_[c].key)).second) continue;
    throw Error(Exit::damaged, "two values of the state dict have one path").key(path_text(c));
  }
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
  check_keys(n);
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
