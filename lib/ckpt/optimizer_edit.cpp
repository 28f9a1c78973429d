// edit_optimizer of lib/ckpt/tree_edit.h.
#include <fmt/format.h>

#include <algorithm>

#include "lib/ckpt/optimizer.h"
#include "lib/ckpt/tree_edit.h"

namespace fsdpctl {
namespace {

class OptimizerEditor {
 public:
  OptimizerEditor(const OptimizerInfo& optimizer, const Selection& selection, const NameMap& names, std::vector<Change>& changes)
      : optimizer_(optimizer), names_(names), changes_(changes) {
    if (names.drops() && !optimizer.named) {
      throw Error(Exit::refused, "names are dropped beside an optimizer that records only ids")
          .key(optimizer.path)
          .try_("--part model");
    }
    OptimizerInfo again;
    again.value = optimizer.value;
    again.flattened = optimizer.flattened;
    if (!again.flattened) ids_ = read_param_groups(again, arena_);
    if (selection.fill_missing) find_fields();
  }

  Value edit() { return optimizer_.flattened ? edit_flattened() : edit_nested(); }

 private:
  std::string path(std::string_view below) const {
    return optimizer_.path.empty() ? std::string(below) : fmt::format("{}.{}", optimizer_.path, below);
  }

  void find_fields() {
    std::string_view known = optimizer_.class_guess;
    class_text_ = known;
    if (known.empty() && is_adam_or_adamw()) {
      known = "Adam";
      class_text_ = "Adam; AdamW sets its own when it loads";
    }
    fields_ = later_group_fields(known);
    if (known.empty() && !optimizer_.groups.empty()) {
      throw Error(Exit::refused, "class of the optimizer is unknown, so are its missing group fields")
          .key(optimizer_.path)
          .try_("leave out --fill-missing");
    }
  }

  // Too old to tell them apart (before 1.12), but their missing fields are the same.
  bool is_adam_or_adamw() const {
    if (optimizer_.groups.empty()) return false;
    const auto& fields = optimizer_.groups.front().fields;
    const auto has = [&](std::string_view name) {
      return std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
    };
    return has("betas") && has("amsgrad");
  }

  Value edit_nested() {
    std::vector<Entry> entries;
    for (const Entry& e : optimizer_.value->entries()) {
      const std::string_view key = key_of(e);
      if (key == "state") entries.push_back({e.key, edit_states(e.value)});
      else if (key == "param_groups") entries.push_back({e.key, edit_groups(e.value)});
      else entries.push_back(e);
    }
    return remade(*optimizer_.value, std::move(entries));
  }

  static Value remade(const Value& like, std::vector<Entry> entries) {
    Value made = Value::mapping(like.kind(), std::move(entries));
    made.mutable_node<MappingNode>().attributes = like.node<MappingNode>().attributes;
    return made;
  }

  // The parameter's name that a state key or group item stands for.
  std::string name_of(const Value& key) const {
    std::string text = key_text(key);
    const auto named = ids_.find(text);
    return named == ids_.end() ? text : std::string(named->second);
  }

  Value edit_states(const Value& states) {
    std::vector<Entry> entries;
    for (const Entry& e : states.entries()) {
      const std::string name = name_of(e.key);
      if (names_.dropped(name)) {
        changes_.push_back({"dropped", path(fmt::format("state.{}", key_text(e.key))), fmt::format("state of {}", name)});
      } else {
        entries.push_back({renamed(e.key, name), e.value});
      }
    }
    if (names_.renames()) check_keys(entries, path("state"));
    return remade(states, std::move(entries));
  }

  // Ids stay ids.
  Value renamed(const Value& key, const std::string& name) const {
    if (!key.is(Kind::string) || key.text() != name) return key;
    const std::string_view to = names_.renamed(name);
    return to == name ? key : Value::string(to);
  }

  Value edit_groups(const Value& groups) {
    std::vector<Value> items;
    for (size_t i = 0; i < groups.items().size(); ++i) items.push_back(edit_group(groups.items()[i], path(fmt::format("param_groups.{}", i))));
    return Value::sequence(groups.kind(), std::move(items));
  }

  Value edit_group(const Value& group, const std::string& where) {
    std::vector<Entry> entries;
    for (const Entry& e : group.entries()) {
      const std::string_view key = key_of(e);
      const bool lists_names = (key == "params" || key == "param_names") && e.value.is_sequence();
      entries.push_back(lists_names ? Entry{e.key, edit_list(e.value, fmt::format("{}.{}", where, key))} : e);
    }
    const auto end = std::find_if(entries.begin(), entries.end(), [](const Entry& e) { return key_of(e) == "params"; });
    std::vector<Entry> filled;
    for (const auto& field : fields_) {
      if (group.find(field.first) != nullptr) continue;
      filled.push_back({Value::string(field.first), field.second});
      list_filled(fmt::format("{}.{}", where, field.first), field.second);
    }
    entries.insert(end, filled.begin(), filled.end());
    return remade(group, std::move(entries));
  }

  Value edit_list(const Value& list, const std::string& where) {
    std::vector<Value> items;
    for (const Value& item : list.items()) {
      const std::string name = name_of(item);
      if (!names_.dropped(name)) items.push_back(renamed(item, name));
      else changes_.push_back({"dropped", where, name});
    }
    return Value::sequence(list.kind(), std::move(items));
  }

  Value edit_flattened() {
    // Where each parameter's last hyperparameter stands: what is missing follows it.
    std::unordered_map<std::string_view, size_t> last;
    const std::vector<Entry>& old = optimizer_.value->entries();
    for (size_t i = 0; i < old.size(); ++i) {
      if (const auto names = split_flattened(key_of(old[i]), kFlatGroups)) last[names->fqn] = i;
    }
    std::unordered_set<std::string_view> present;   // keys
    if (!fields_.empty()) {
      for (const Entry& e : old) present.insert(key_of(e));
    }
    std::vector<Entry> entries;
    for (size_t i = 0; i < old.size(); ++i) {
      const std::string_view key = key_of(old[i]);
      const auto state = split_flattened(key, kFlatState), group = split_flattened(key, kFlatGroups);
      const std::string_view fqn = state ? state->fqn : group->fqn;
      if (names_.dropped(fqn)) {
        changes_.push_back({"dropped", path(key), fmt::format("{} of {}", state ? "state" : "group field", fqn)});
        continue;
      }
      const std::string_view prefix = state ? kFlatState : kFlatGroups, to = names_.renamed(fqn);
      entries.push_back(old[i]);
      if (to != fqn) entries.back().key = Value::string(fmt::format("{}{}.{}", prefix, to, state ? state->last : group->last));
      if (group && last[fqn] == i) fill_flattened(fqn, to, present, entries);
    }
    if (names_.renames()) check_keys(entries, optimizer_.path);
    return remade(*optimizer_.value, std::move(entries));
  }

  void fill_flattened(std::string_view from, std::string_view to, const std::unordered_set<std::string_view>& present,
                      std::vector<Entry>& entries) {
    for (const auto& field : fields_) {
      if (present.count(fmt::format("{}{}.{}", kFlatGroups, from, field.first)) != 0) continue;
      std::string key = fmt::format("{}{}.{}", kFlatGroups, to, field.first);
      list_filled(path(key), field.second);
      entries.push_back({Value::string(key), field.second});
    }
  }

  void list_filled(std::string key, const Value& value) {
    const char* text = value.is(Kind::none) ? "None" : value.as_boolean() ? "True" : "False";
    changes_.push_back({"filled", std::move(key), fmt::format("{} (default of {})", text, class_text_)});
  }

  const OptimizerInfo& optimizer_;
  const NameMap& names_;
  std::vector<Change>& changes_;
  Arena arena_;
  IdNames ids_;
  std::span<const std::pair<std::string_view, Value>> fields_;   // to fill in where missing
  std::string class_text_;
};

}  // namespace

Value edit_optimizer(const OptimizerInfo& optimizer, const Selection& selection, const NameMap& names, std::vector<Change>& changes) {
  return OptimizerEditor(optimizer, selection, names, changes).edit();
}

}  // namespace fsdpctl
