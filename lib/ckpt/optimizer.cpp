#include "lib/ckpt/optimizer.h"

#include <algorithm>

#include "lib/base/value_json.h"

namespace fsdpctl {
namespace {

bool is_list(const Value& v) { return v.is(Kind::list) || v.is(Kind::tuple); }

bool are_groups(const Value& v) {
  return is_list(v) && std::all_of(v.items().begin(), v.items().end(), [](const Value& group) { return group.is_mapping(); });
}

// The names that a group lists become OptimizerGroup::params.
void read_params(const Value& params, const Value* names, OptimizerInfo& info, OptimizerGroup& group, IdNames& id_names, Arena& arena) {
  const bool recorded = names != nullptr && names->items().size() == params.items().size();
  for (size_t i = 0; i < params.items().size(); ++i) {
    const Value& param = params.items()[i];
    if (param.is(Kind::string)) {
      group.params.push_back(param.text());
      continue;
    }
    const std::string_view id = arena.store(key_text(param));
    info.integer_ids = true;
    if (recorded && names->items()[i].is(Kind::string)) {
      group.params.push_back(names->items()[i].text());
      id_names.emplace(id, names->items()[i].text());
    } else {
      group.params.push_back(id);
      info.named = false;
    }
  }
}

IdNames read_nested(OptimizerInfo& info, Arena& arena) {
  IdNames id_names;
  bool listed = false;
  for (const Value& value : info.value->find("param_groups")->items()) {
    OptimizerGroup group;
    const Value *params = nullptr, *names = nullptr;
    for (const Entry& e : value.entries()) {
      const std::string_view key = key_of(e);
      if (key == "params" && is_list(e.value)) params = &e.value;
      else if (key == "param_names" && is_list(e.value)) names = &e.value;
      else group.fields.emplace_back(e.key.is(Kind::string) ? key : arena.store(key_text(e.key)), &e.value);
    }
    if (params != nullptr) read_params(*params, names, info, group, id_names, arena);
    listed = listed || params != nullptr;
    info.groups.push_back(std::move(group));
  }
  // Without lists, the state's keys tell.
  const Value* state = info.value->find("state");
  if (!listed && state != nullptr) {
    for (const Entry& e : state->entries()) {
      if (e.key.is(Kind::integer)) info.integer_ids = true, info.named = false;
    }
  }
  return id_names;
}

// Equal for equal hyperparameters, in whatever order they stand.
std::string hyper_text(const OptimizerGroup& group) {
  std::vector<std::string> lines;
  for (const auto& field : group.fields) {
    lines.push_back(std::string(field.first) + " " + value_to_json(*field.second, JsonForm::canonical) + "\n");
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

// The flattened style has no groups; parameters of equal hyperparameters are shown as one.
void read_flattened(OptimizerInfo& info) {
  std::unordered_map<std::string_view, size_t> index;
  std::vector<std::pair<std::string_view, OptimizerGroup>> per_parameter;
  for (const Entry& e : info.value->entries()) {
    const auto names = split_flattened(key_of(e), kFlatGroups);
    if (!names) continue;
    const auto [at, fresh] = index.emplace(names->fqn, per_parameter.size());
    if (fresh) per_parameter.emplace_back(names->fqn, OptimizerGroup());
    per_parameter[at->second].second.fields.emplace_back(names->last, &e.value);
  }
  std::unordered_map<std::string, size_t> groups;
  for (auto& parameter : per_parameter) {
    const auto [at, fresh] = groups.emplace(hyper_text(parameter.second), info.groups.size());
    if (fresh) info.groups.push_back(std::move(parameter.second));
    info.groups[at->second].params.push_back(parameter.first);
  }
}

}  // namespace

OptimizerStyle optimizer_style(const Value& mapping) {
  bool nested = false, states = true;
  size_t flat_states = 0, flat_groups = 0;
  for (const Entry& e : mapping.entries()) {
    const std::string_view key = key_of(e);
    if (key == "param_groups") nested = are_groups(e.value);
    else if (key == "state") states = e.value.is_mapping();
    else if (split_flattened(key, kFlatState)) ++flat_states;
    else if (split_flattened(key, kFlatGroups)) ++flat_groups;
  }
  if (nested && states) return OptimizerStyle::nested;
  const bool flattened = flat_groups > 0 && flat_states + flat_groups == mapping.entries().size();
  return flattened ? OptimizerStyle::flattened : OptimizerStyle::none;
}

std::optional<FlatKey> split_flattened(std::string_view key, std::string_view prefix) {
  const size_t dot = key.rfind('.');
  if (!key.starts_with(prefix) || dot == std::string_view::npos || dot <= prefix.size()) return std::nullopt;
  return FlatKey{key.substr(prefix.size(), dot - prefix.size()), key.substr(dot + 1)};
}

IdNames read_param_groups(OptimizerInfo& info, Arena& arena) {
  if (!info.flattened) return read_nested(info, arena);
  read_flattened(info);
  return {};
}

}  // namespace fsdpctl
