#include "lib/ckpt/tree_edit.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsdpctl {

// Appends an element to path_ for as long as it lives.
class TreeEditor::Element {
 public:
  Element(TreeEditor& editor, std::string_view text) : editor_(editor), size_(editor.path_.size()) {
    if (size_ > 0) editor.path_ += '.';
    editor.path_ += text;
  }
  ~Element() { editor_.path_.resize(size_); }
  Element(const Element&) = delete;

 private:
  TreeEditor& editor_;
  size_t size_;
};

TreeEditor::TreeEditor(const Checkpoint& checkpoint, const Parts& parts, const Selection& selection, NameMap& names,
                       std::vector<Change>& changes)
    : checkpoint_(checkpoint), parts_(parts), selection_(selection), names_(names), changes_(changes) {
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.part == Part::model) model_leaves_.emplace(leaf.value, &leaf);
  }
  for (const OptimizerInfo& o : parts.optimizers) optimizers_.emplace(o.value, &o);
}

std::optional<Value> TreeEditor::edit() {
  mark_mixed(checkpoint_.tree, false);
  if (!selection_.model && !model_leaves_.empty()) {
    list_dropped(parts_.model_path.empty() ? "model" : parts_.model_path, fmt::format("{} names left out by --part", model_leaves_.size()));
  }
  std::optional<Value> tree = edit(checkpoint_.tree);
  names_.check_globs();
  return tree;
}

// Values are told apart by address, but a dict that stands at two places ({"model": d, "best": d}) has one set of children: they
// are the model's only below the model's own place.
bool TreeEditor::mark_mixed(const Value& v, bool in_model) {
  if (optimizers_.count(&v) != 0) return true;
  in_model = in_model || &v == parts_.model;
  if (is_leaf(v)) return in_model && model_leaves_.count(&v) != 0;
  bool mixed = false;
  if (v.is_mapping()) {
    for (const Entry& e : v.entries()) mixed = mark_mixed(e.value, in_model) || mixed;
  } else {
    for (const Value& item : v.items()) mixed = mark_mixed(item, in_model) || mixed;
  }
  if (mixed) mixed_.insert(&v);
  return mixed;
}

const LeafInfo* TreeEditor::model_leaf(const Value& v) const {
  const auto found = model_leaves_.find(&v);
  return in_model_ && found != model_leaves_.end() ? found->second : nullptr;
}

std::optional<Value> TreeEditor::edit(const Value& v) {
  if (const auto found = optimizers_.find(&v); found != optimizers_.end()) {
    const OptimizerInfo& o = *found->second;
    const std::string_view glob = names_.drop_glob_of_optimizer(path_);
    if (selection_.optimizer && glob.empty()) return edit_optimizer(o, selection_, names_, changes_);
    if (!glob.empty()) {
      list_dropped(path_, fmt::format("state of {} parameters, --drop '{}'", o.parameters.size(), glob));
      return std::nullopt;
    }
    list_dropped(path_.empty() ? "optimizer" : path_, fmt::format("state of {} parameters left out by --part", o.parameters.size()));
    return std::nullopt;
  }
  const bool outside = !in_model_;
  in_model_ = in_model_ || &v == parts_.model;
  std::optional<Value> kept;
  if (is_leaf(v)) kept = edit_leaf(v);
  else if (mixed_.count(&v) == 0 && drop_extra()) kept.reset();
  else if (mixed_.count(&v) == 0 && selection_.drop.empty()) kept = v;
  else kept = v.is_mapping() ? edit_mapping(v) : edit_sequence(v);
  if (outside) in_model_ = false;
  return kept;
}

std::optional<Value> TreeEditor::edit_leaf(const Value& v) {
  const LeafInfo* leaf = model_leaf(v);
  if (leaf == nullptr) {
    if (drop_extra()) return std::nullopt;
    return v;
  }
  if (!selection_.model) return std::nullopt;
  if (!names_.dropped(leaf->fqn)) return v;
  list_dropped(path_, fmt::format("--drop '{}'", names_.drop_glob_of(*leaf)));
  return std::nullopt;
}

bool TreeEditor::drop_extra() {
  const std::string_view glob = path_.empty() ? std::string_view() : names_.drop_glob(path_);
  if (selection_.extra && glob.empty()) return false;
  list_dropped(path_, selection_.extra ? fmt::format("--drop '{}'", glob) : "left out by --part");
  return true;
}

std::optional<Value> TreeEditor::key_for(const Value& key, const Value& old, const Value& kept) {
  const LeafInfo* leaf = model_leaf(old);
  if (leaf == nullptr) return key;
  const std::string_view fqn = leaf->fqn, name = names_.renamed(fqn);
  if (name == fqn) return key;
  const std::string_view above = fqn.substr(0, fqn.size() - std::min(fqn.size(), key_text(key).size()));
  if (name.size() > above.size() && name.starts_with(above)) return Value::string(name.substr(above.size()));
  hoisted_.push_back({Value::string(name), kept});
  return std::nullopt;
}

std::optional<Value> TreeEditor::edit_mapping(const Value& v) {
  std::vector<Entry> entries;
  for (const Entry& e : v.entries()) {
    std::optional<Value> kept;
    if (e.key.is(Kind::string)) {
      Element element(*this, e.key.text());
      kept = edit(e.value);
    } else {
      Element element(*this, key_text(e.key));
      kept = edit(e.value);
    }
    if (!kept) continue;
    std::optional<Value> key = key_for(e.key, e.value, *kept);
    if (key) entries.push_back({std::move(*key), std::move(*kept)});
  }
  const bool model = &v == parts_.model;
  if (model) std::move(hoisted_.begin(), hoisted_.end(), std::back_inserter(entries)), hoisted_.clear();
  if (entries.empty()) return std::nullopt;
  if (names_.renames()) check_keys(entries, path_);
  Value made = Value::mapping(v.kind(), std::move(entries));
  const Value& attributes = v.node<MappingNode>().attributes;
  made.mutable_node<MappingNode>().attributes = model && names_.renames() ? module_metadata(attributes) : attributes;
  return made;
}

std::optional<Value> TreeEditor::edit_sequence(const Value& v) {
  std::vector<Value> items;
  bool any = false;
  for (size_t i = 0; i < v.items().size(); ++i) {
    const Value& item = v.items()[i];
    Element element(*this, std::to_string(i));
    std::optional<Value> kept = edit(item);
    if (kept && !key_for(Value::integer(static_cast<int64_t>(i)), item, *kept)) kept.reset();
    any = any || kept;
    items.push_back(kept ? std::move(*kept) : Value());   // None keeps the places of the others
  }
  if (!any) return std::nullopt;
  return Value::sequence(v.kind(), std::move(items));
}

void TreeEditor::list_dropped(std::string key, std::string why) { changes_.push_back({"dropped", std::move(key), std::move(why)}); }

// A state dict's `_metadata` maps module paths to versions; modules that moved take theirs along.
Value TreeEditor::module_metadata(const Value& attributes) const {
  if (!attributes.is_mapping()) return attributes;
  const auto modules = names_.modules();
  std::vector<Entry> out;
  for (const Entry& e : attributes.entries()) {
    Value value = e.value;
    if (e.key.is(Kind::string) && e.key.text() == "_metadata" && value.is_mapping()) {
      std::vector<Entry> versions;
      std::unordered_set<std::string> met;
      for (const Entry& m : value.entries()) {
        const auto moved = modules.find(key_text(m.key));
        const std::string path = moved == modules.end() ? key_text(m.key) : moved->second;
        // Where a wrapper and what it wrapped become one path, the first one stands.
        if (met.insert(path).second) versions.push_back({moved == modules.end() ? m.key : Value::string(path), m.value});
      }
      Value renamed = Value::mapping(value.kind(), std::move(versions));
      renamed.mutable_node<MappingNode>().attributes = value.node<MappingNode>().attributes;
      value = std::move(renamed);
    }
    out.push_back({e.key, std::move(value)});
  }
  return Value::mapping(attributes.kind(), std::move(out));
}

void check_keys(const std::vector<Entry>& entries, const std::string& path) {
  std::unordered_set<std::string> met;
  for (const Entry& e : entries) {
    std::string text = key_text(e.key);
    if (met.insert(text).second) continue;
    throw Error(Exit::refused, "two entries would have one key").key(path.empty() ? text : path + "." + text);
  }
}

}  // namespace fsdpctl
