#include "lib/train/config/config_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/base/nearest_name.h"

namespace fsdpctl::train {
namespace {

constexpr int kDeepest = 32;

std::string shown(const Json& json) {
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kMost = 80;
  return text.size() <= kMost ? text : text.substr(0, kMost) + " ...";
}

bool in_range(double value, const Range& range) {
  if (!std::isfinite(value)) return false;
  return range.exclusive ? value > range.least && value < range.most : value >= range.least && value <= range.most;
}

std::string range_text(const Range& range) {
  const bool bounded = range.most < 1e300;
  if (range.exclusive) {
    return bounded ? fmt::format("a number between {} and {}", range.least, range.most) : fmt::format("a number above {}", range.least);
  }
  return bounded ? fmt::format("a number from {} to {}", range.least, range.most) : fmt::format("a number, {} or more", range.least);
}

std::optional<std::vector<std::string>> texts_of(const Json& json) {
  if (!json.is_array()) return std::nullopt;
  std::vector<std::string> texts;
  for (const Json& item : json) {
    if (!item.is_string()) return std::nullopt;
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

}  // namespace

// ---- kinds of keys

std::optional<int64_t> integer_of(const Json& json) {
  if (json.is_number_float()) {
    const double value = json.get<double>();
    if (value != std::floor(value) || std::abs(value) > static_cast<double>(kMostInteger)) return std::nullopt;
    return static_cast<int64_t>(value);
  }
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(kMostInteger)) return std::nullopt;
  return json.is_number_integer() ? std::optional(json.get<int64_t>()) : std::nullopt;
}

std::string integer_text(int64_t least, int64_t most) {
  return most >= kMostInteger ? fmt::format("an integer, {} or more", least) : fmt::format("an integer from {} to {}", least, most);
}

std::string choices_text(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

ConfigKey flag_key(std::string name, bool& value, std::string help, Resumed resumed) {
  const auto read = [&value](const Json& json) {
    if (!json.is_boolean()) return false;
    value = json.get<bool>();
    return true;
  };
  return {std::move(name), "true or false", std::move(help), read, [&value] { return Json(value); }, resumed};
}

ConfigKey number_key(std::string name, double& value, Range range, std::string help, Resumed resumed) {
  const auto read = [&value, range](const Json& json) {
    if (!json.is_number() || !in_range(json.get<double>(), range)) return false;
    value = json.get<double>();
    return true;
  };
  return {std::move(name), range_text(range), std::move(help), read, [&value] { return Json(value); }, resumed};
}

ConfigKey text_key(std::string name, std::string& value, std::string help, Resumed resumed) {
  const auto read = [&value](const Json& json) {
    if (!json.is_string()) return false;
    value = json.get<std::string>();
    return true;
  };
  return {std::move(name), "a string", std::move(help), read, [&value] { return Json(value); }, resumed};
}

ConfigKey texts_key(std::string name, std::vector<std::string>& value, std::string help, Resumed resumed) {
  const auto read = [&value](const Json& json) {
    const auto texts = texts_of(json);
    if (texts) value = *texts;
    return texts.has_value();
  };
  return {std::move(name), "a list of strings", std::move(help), read, [&value] { return Json(value); }, resumed};
}

ConfigKey number_or_null_key(std::string name, std::optional<double>& value, Range range, std::string help) {
  const auto read = [&value, range](const Json& json) {
    if (!json.is_null() && (!json.is_number() || !in_range(json.get<double>(), range))) return false;
    value = json.is_null() ? std::nullopt : std::optional(json.get<double>());
    return true;
  };
  return {std::move(name), range_text(range) + ", or null", std::move(help), read, [&value] { return value ? Json(*value) : Json(); }};
}

ConfigKey texts_or_null_key(std::string name, std::optional<std::vector<std::string>>& value, std::string help, Resumed resumed) {
  const auto read = [&value](const Json& json) {
    value = texts_of(json);
    return value || json.is_null();
  };
  return {std::move(name), "a list of strings, or null", std::move(help), read, [&value] { return value ? Json(*value) : Json(); }, resumed};
}

// ---- reading

namespace {

// The part of `name` between `prefix` and the next dot; empty where it does not begin so.
std::string_view next_part(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  return name.substr(0, name.find('.'));
}

[[noreturn]] void refuse_unknown(const ConfigTable& table, const std::string& inside, const std::string& key, const std::string& path,
                                 const std::string& prefix) {
  std::vector<std::string> here, leaves;
  for (const ConfigKey& known : table) {
    const std::string part(next_part(known.name, inside));
    if (!part.empty() && std::find(here.begin(), here.end(), part) == here.end()) here.push_back(part);
    if (known.name.substr(known.name.rfind('.') + 1) == key) leaves.push_back(prefix + known.name);   // elsewhere
  }
  std::string hint = nearest_name(key, here);
  if (!hint.empty()) hint = prefix + inside + hint;
  else if (!leaves.empty()) hint = leaves[0];
  throw Error(Exit::usage, "unknown key in the config").at(path).key(prefix + inside + key).try_(std::move(hint));
}

void read_object(const ConfigTable& table, const Json& object, const std::string& inside, const std::string& path, const std::string& prefix) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = inside + key;
    const auto leaf = std::find_if(table.begin(), table.end(), [&](const ConfigKey& known) { return known.name == name; });
    if (leaf != table.end()) {
      if (!leaf->read(value)) {
        throw Error(Exit::usage, "wrong value in the config").at(path).key(prefix + name).saw(leaf->allowed, shown(value));
      }
      continue;
    }
    const bool section = std::any_of(table.begin(), table.end(), [&](const ConfigKey& known) { return known.name.starts_with(name + "."); });
    if (!section) refuse_unknown(table, inside, key, path, prefix);
    if (!value.is_object()) {
      throw Error(Exit::usage, "wrong value in the config").at(path).key(prefix + name).saw("an object", shown(value));
    }
    read_object(table, value, name + ".", path, prefix);
  }
}

}  // namespace

void read_table(const ConfigTable& table, const Json& object, const std::string& path, const std::string& prefix) {
  if (!object.is_object()) {
    const std::string name = prefix.empty() ? "" : prefix.substr(0, prefix.size() - 1);
    throw Error(Exit::usage, "wrong value in the config").at(path).key(name).saw("an object", shown(object));
  }
  read_object(table, object, "", path, prefix);
}

Json parse_config_text(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> keys;   // of the objects around
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepest) throw Error(Exit::usage, "the config nests too deep").at(path).saw(fmt::format("{} levels at most", kDeepest), "more");
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(Exit::usage, "key given twice in the config").at(path).key(parsed.get<std::string>());
    }
    return true;
  };
  try {
    return Json::parse(text, look, true, /*ignore_comments=*/true);
  } catch (const Json::parse_error& failure) {
    const std::string_view before = text.substr(0, std::min(failure.byte == 0 ? 0 : failure.byte - 1, text.size()));
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t column = before.size() - (before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1) + 1;
    // "[json.exception.parse_error.101] parse error at line 1, column 2: what"
    const std::string_view words = failure.what();
    const size_t what = words.find(": ");
    throw Error(Exit::usage, "the config is not JSON")
        .at(path)
        .found_only(fmt::format("line {}, column {}: {}", line, column, what == words.npos ? words : words.substr(what + 2)));
  } catch (const Json::exception& failure) {   // numbers beyond all bounds
    throw Error(Exit::usage, "the config is not JSON").at(path).found_only(failure.what());
  }
}

void assign(Json& object, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  const std::string name = assignment.substr(0, equals);
  if (equals == assignment.npos || name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != name.npos) {
    throw Error(Exit::usage, "bad value").key("--set").saw("KEY=VALUE, as optimizer.lr=1e-4", "'" + assignment + "'");
  }
  Json* place = &object;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (!place->is_object()) {
      throw Error(Exit::usage, "this key of the config has no keys in it").key(name.substr(0, begin == 0 ? 0 : begin - 1)).at("--set");
    }
    place = &(*place)[name.substr(begin, end - begin)];
    if (end < name.size() && place->is_null()) *place = Json::object();
    begin = end + 1;
  }
  const std::string text = assignment.substr(equals + 1);
  *place = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (place->is_discarded()) *place = text;
}

// ---- writing

namespace {

Json& place_of(Json& object, const std::string& name) {
  Json* place = &object;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    place = &(*place)[name.substr(begin, end - begin)];
    begin = end + 1;
  }
  return *place;
}

// Values of several lines begin all but the first one under their key.
std::string indented(const Json& value, size_t spaces) {
  const bool nested = value.is_object() || (value.is_array() && !value.empty() && value[0].is_object());
  const std::string flat = value.dump(nested ? 2 : -1, ' ', false, Json::error_handler_t::replace);
  std::string text;
  for (const char c : flat) {
    text += c;
    if (c == '\n') text.append(spaces, ' ');
  }
  return text;
}

}  // namespace

Json write_table(const ConfigTable& table) {
  Json object = Json::object();
  for (const ConfigKey& key : table) place_of(object, key.name) = key.write();
  return object;
}

std::string explained_table(const ConfigTable& table) {
  std::string text = "{";
  std::vector<std::string> open;   // objects around
  bool first = true;
  for (const ConfigKey& key : table) {
    std::vector<std::string> path;
    for (size_t begin = 0; begin <= key.name.size();) {
      const size_t end = std::min(key.name.find('.', begin), key.name.size());
      path.push_back(key.name.substr(begin, end - begin));
      begin = end + 1;
    }
    size_t common = 0;
    while (common < open.size() && common + 1 < path.size() && open[common] == path[common]) ++common;
    while (open.size() > common) {
      open.pop_back();
      text += fmt::format("\n{:{}}}}", "", 2 * (open.size() + 1));
    }
    if (!first) text += ",";
    first = true;
    while (open.size() + 1 < path.size()) {
      text += fmt::format("{}\n{:{}}\"{}\": {{", open.empty() ? "\n" : "", "", 2 * (open.size() + 1), path[open.size()]);
      open.push_back(path[open.size()]);
    }
    const size_t indent = 2 * (open.size() + 1);
    text += fmt::format("\n{:{}}// {}{}{}\n{:{}}\"{}\": {}", "", indent, key.help, key.help.empty() ? "" : "; ", key.allowed, "", indent,
                        path.back(), indented(key.write(), indent));
    first = false;
  }
  while (!open.empty()) {
    open.pop_back();
    text += fmt::format("\n{:{}}}}", "", 2 * (open.size() + 1));
  }
  return text + "\n}\n";
}

}  // namespace fsdpctl::train
