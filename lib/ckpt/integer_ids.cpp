#include "lib/ckpt/integer_ids.h"

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lib/ckpt/optimizer.h"
#include "lib/ckpt/renumber.h"

namespace fsdpctl {
namespace {

// The integers that the groups list, by their text.
std::unordered_map<std::string, Value> listed_ids(const Value& groups) {
  std::unordered_map<std::string, Value> ids;
  for (const Value& group : groups.items()) {
    const Value* params = group.find("params");
    if (params == nullptr || !(params->is(Kind::list) || params->is(Kind::tuple))) continue;
    for (const Value& id : params->items()) {
      if (id.is(Kind::integer)) ids.emplace(key_text(id), id);
    }
  }
  return ids;
}

Value with_entries(const Value& like, std::vector<Entry> entries) {
  Value made = Value::mapping(like.kind(), std::move(entries));
  made.mutable_node<MappingNode>().attributes = like.node<MappingNode>().attributes;
  return made;
}

// nullopt where nothing is to be changed.
std::optional<Value> integer_keyed(const Value& state, const std::unordered_map<std::string, Value>& ids) {
  std::vector<Entry> entries;
  std::unordered_set<std::string> met;
  bool changed = false;
  for (const Entry& e : state.entries()) {
    if (!e.key.is(Kind::string) && !e.key.is(Kind::integer)) return std::nullopt;
    std::string text = key_text(e.key);
    const auto id = ids.find(text);
    if (id == ids.end() || !met.insert(std::move(text)).second) return std::nullopt;
    changed = changed || e.key.is(Kind::string);
    entries.push_back({id->second, e.value});
  }
  if (!changed) return std::nullopt;
  return with_entries(state, std::move(entries));
}

// Mappings and lists are enough: nothing else holds an optimizer.
class Editor {
 public:
  explicit Editor(std::vector<Change>& changes) : changes_(changes) {}

  std::optional<Value> edit(const Value& v) {
    if (v.is_mapping()) return optimizer_style(v) == OptimizerStyle::nested ? edit_optimizer(v) : edit_mapping(v);
    if (v.is(Kind::list) && has_mapping(v)) return edit_list(v);
    return std::nullopt;
  }

 private:
  std::optional<Value> edit_below(const std::string& element, const Value& v) {
    const size_t length = path_.size();
    path_ += (path_.empty() ? "" : ".") + element;
    std::optional<Value> edited = edit(v);
    path_.resize(length);
    return edited;
  }

  std::optional<Value> edit_optimizer(const Value& optimizer) {
    const Value *state = optimizer.find("state"), *groups = optimizer.find("param_groups");
    if (state == nullptr) return std::nullopt;
    std::optional<Value> keyed = integer_keyed(*state, listed_ids(*groups));
    if (!keyed) return std::nullopt;
    changes_.push_back({"key", path_.empty() ? "state" : path_ + ".state", "keys are integers again, as params names them"});
    std::vector<Entry> entries = optimizer.entries();
    for (Entry& e : entries) {
      if (key_of(e) == "state") e.value = *keyed;
    }
    return with_entries(optimizer, std::move(entries));
  }

  std::optional<Value> edit_mapping(const Value& mapping) {
    std::optional<Value> made;
    for (size_t i = 0; i < mapping.entries().size(); ++i) {
      const Entry& e = mapping.entries()[i];
      if (!e.value.is_mapping() && !e.value.is(Kind::list)) continue;
      std::optional<Value> edited = edit_below(key_text(e.key), e.value);
      if (!edited) continue;
      if (!made) made = with_entries(mapping, mapping.entries());
      made->mutable_entries()[i].value = std::move(*edited);
    }
    return made;
  }

  std::optional<Value> edit_list(const Value& list) {
    std::optional<Value> made;
    for (size_t i = 0; i < list.items().size(); ++i) {
      std::optional<Value> edited = edit_below(std::to_string(i), list.items()[i]);
      if (!edited) continue;
      if (!made) made = Value::sequence(list.kind(), list.items());
      made->mutable_items()[i] = std::move(*edited);
    }
    return made;
  }

  std::vector<Change>& changes_;
  std::string path_;
};

}  // namespace

Checkpoint with_integer_ids(const Checkpoint& checkpoint, std::vector<Change>& changes) {
  std::optional<Value> tree = Editor(changes).edit(checkpoint.tree);
  return tree ? with_tree(checkpoint, std::move(*tree)) : checkpoint;
}

}  // namespace fsdpctl
