#include "lib/train/config_changes.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

using Json = nlohmann::json;
using Flat = std::map<std::string, std::string>;

void flatten(const Json& value, const std::string& key, Flat& out) {
  if (!value.is_object() || value.empty()) {
    out[key] = value.dump();
    return;
  }
  for (const auto& [name, member] : value.items()) flatten(member, key.empty() ? name : key + "." + name, out);
}

Flat flat(std::string_view text, const char* whose) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(Exit::damaged, "configuration is no JSON object").key(whose);
  Flat out;
  if (!json.empty()) flatten(json, {}, out);
  return out;
}

}  // namespace

bool is_at_or_below(std::string_view key, std::span<const std::string> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& k) {
    return key.starts_with(k) && (key.size() == k.size() || key[k.size()] == '.');
  });
}

std::vector<ConfigChange> config_changes(std::string_view saved, std::string_view now, std::span<const std::string> left_out) {
  const Flat before = flat(saved, "config"), after = flat(now, "config of this run");
  std::map<std::string, ConfigChange> changes;
  for (const auto& [key, value] : before) changes[key] = {key, value, {}};
  for (const auto& [key, value] : after) {
    ConfigChange& change = changes[key];
    change.key = key;
    change.now = value;
  }
  std::vector<ConfigChange> result;
  for (auto& [key, change] : changes) {
    if (change.saved != change.now && !is_at_or_below(key, left_out)) result.push_back(std::move(change));
  }
  return result;
}

}  // namespace fsdpctl::train
