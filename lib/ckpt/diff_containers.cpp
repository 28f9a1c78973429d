#include "lib/ckpt/diff_containers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lib/base/value_json.h"

namespace fsdpctl {
namespace {

bool is_list(const Value& v) { return v.is(Kind::list) || v.is(Kind::tuple) || v.is(Kind::size); }

bool has_other_keys(const Value& mapping) {
  const std::vector<Entry>& entries = mapping.entries();
  return std::any_of(entries.begin(), entries.end(), [](const Entry& e) { return !e.key.is(Kind::string); });
}

std::string_view class_name(const Value& container) {
  switch (container.kind()) {
    case Kind::list: return "list";
    case Kind::tuple: return "tuple";
    case Kind::size: return "torch.Size";
    case Kind::ordered_dict: return "OrderedDict";
    case Kind::counter: return "Counter";
    case Kind::default_dict: return "defaultdict";
    default: return "dict";
  }
}

std::string container_text(const Value& container) {
  std::string text(class_name(container));
  if (!container.is_mapping()) return text;
  if (has_other_keys(container)) text += ", some keys no strings";
  if (container.is(Kind::ordered_dict) && !container.node<MappingNode>().attributes.is(Kind::none)) text += ", with attributes";
  return text;
}

// Finds the entries of one mapping by the text of their keys: usually the next one.
class EntryFinder {
 public:
  explicit EntryFinder(const Value& mapping) : entries_(mapping.entries()) {}

  const Value* find(const std::string& key) {
    if (next_ < entries_.size() && key_text(entries_[next_].key) == key) return &entries_[next_++].value;
    if (by_key_.empty()) {
      for (const Entry& e : entries_) by_key_.emplace(key_text(e.key), &e.value);
    }
    const auto hit = by_key_.find(key);
    return hit == by_key_.end() ? nullptr : hit->second;
  }

 private:
  const std::vector<Entry>& entries_;
  size_t next_ = 0;
  std::unordered_map<std::string, const Value*> by_key_;
};

class Walker {
 public:
  void walk(const Value& a, const Value& b) {
    if (a.identity() != nullptr && a.identity() == b.identity()) return;
    const bool mappings = a.is_mapping() && b.is_mapping();
    if (!mappings && !(is_list(a) && is_list(b))) return;
    std::string text_a = container_text(a), text_b = container_text(b);
    if (text_a != text_b) changes_.push_back({path_, std::move(text_a), std::move(text_b)});
    if (mappings) return walk_entries(a, b);
    const size_t both = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < both; ++i) walk_below(std::to_string(i), a.items()[i], b.items()[i]);
  }

  std::vector<ContainerChange> take() { return std::move(changes_); }

 private:
  static bool is_container(const Value& v) { return v.is_mapping() || is_list(v); }

  void walk_entries(const Value& a, const Value& b) {
    EntryFinder in_b(b);
    for (const Entry& e : a.entries()) {
      const std::string key = key_text(e.key);
      if (const Value* other = in_b.find(key)) walk_below(key, e.value, *other);
    }
  }

  void walk_below(const std::string& element, const Value& a, const Value& b) {
    if (!is_container(a)) return;
    const size_t length = path_.size();
    if (length > 0) path_ += '.';
    path_ += element;
    walk(a, b);
    path_.resize(length);
  }

  std::string path_;
  std::vector<ContainerChange> changes_;
};

bool same_entries(const Value& a, const Value& b) {
  if (a.entries().size() != b.entries().size()) return false;
  EntryFinder in_b(b);
  for (const Entry& e : a.entries()) {
    const Value* other = in_b.find(key_text(e.key));
    if (other == nullptr || !same_content(e.value, *other)) return false;
  }
  return true;
}

}  // namespace

bool same_content(const Value& a, const Value& b) {
  if (a.identity() != nullptr && a.identity() == b.identity()) return true;
  if (a.is_mapping() && b.is_mapping()) return same_entries(a, b);
  if (is_list(a) && is_list(b)) {
    return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), same_content);
  }
  return equal(a, b) || value_to_json(a, JsonForm::canonical) == value_to_json(b, JsonForm::canonical);
}

std::vector<ContainerChange> compare_containers(const Value& a, const Value& b) {
  Walker walker;
  walker.walk(a, b);
  return walker.take();
}

}  // namespace fsdpctl
