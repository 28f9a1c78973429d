// Tables of config keys: a line for each key says its name, where its value is, what it may be and what it means. Reading,
// messages, printing with explanations and comparing all follow from the table.
//
// A name is a path of objects: "optimizer.lr". Reading is strict: keys that the table does not have, values of a wrong type or out of
// range and keys given twice are Error(usage) that names the key. What is absent keeps its value.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/finding.h"

namespace fsdpctl::train {

using Json = nlohmann::ordered_json;

// What is made of another value in a run that is resumed.
enum class Resumed : uint8_t {
  listed,
  refused,   // it changes the model, the order of data, or what the optimizer's state means
  free,      // it says nothing of the training itself
};

struct ConfigKey {
  std::string name;
  std::string allowed;                        // "a number, 0 or more": completes "expected ..."
  std::string help;                           // one line
  std::function<bool(const Json&)> read;      // false: not what is allowed
  std::function<Json()> write;
  Resumed resumed = Resumed::listed;
};
using ConfigTable = std::vector<ConfigKey>;   // keys of an object stand together

// ---- kinds of keys; `value` holds the default before and must outlive the table

struct Range {
  double least = 0;
  double most = 1e300;
  bool exclusive = false;                     // not `least` nor `most` themselves
};

ConfigKey flag_key(std::string name, bool& value, std::string help, Resumed resumed = Resumed::listed);
ConfigKey number_key(std::string name, double& value, Range range, std::string help, Resumed resumed = Resumed::listed);
ConfigKey text_key(std::string name, std::string& value, std::string help, Resumed resumed = Resumed::listed);
ConfigKey texts_key(std::string name, std::vector<std::string>& value, std::string help, Resumed resumed = Resumed::listed);
// null where there is none
ConfigKey number_or_null_key(std::string name, std::optional<double>& value, Range range, std::string help);
ConfigKey texts_or_null_key(std::string name, std::optional<std::vector<std::string>>& value, std::string help,
                            Resumed resumed = Resumed::listed);

// Integers up to 2^53, which JSON's readers agree on; 1e6 is one, too.
inline constexpr int64_t kMostInteger = int64_t{1} << 53;
std::optional<int64_t> integer_of(const Json& json);
std::string integer_text(int64_t least, int64_t most);

template <class Integer>
ConfigKey integer_key(std::string name, Integer& value, int64_t least, int64_t most, std::string help,
                      Resumed resumed = Resumed::listed) {
  const auto read = [&value, least, most](const Json& json) {
    const std::optional<int64_t> integer = integer_of(json);
    if (!integer || *integer < least || *integer > most) return false;
    value = static_cast<Integer>(*integer);
    return true;
  };
  return {std::move(name), integer_text(least, most), std::move(help), read, [&value] { return Json(value); }, resumed};
}

// "a, b or c"
std::string choices_text(const std::vector<std::string>& names);

// One of some names, each of a value.
template <class T>
ConfigKey choice_key(std::string name, T& value, std::vector<std::pair<std::string, T>> choices, std::string help,
                     Resumed resumed = Resumed::listed) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  const auto read = [&value, choices](const Json& json) {
    for (const auto& choice : choices) {
      if (json != choice.first) continue;
      value = choice.second;
      return true;
    }
    return false;
  };
  const auto write = [&value, choices] {
    for (const auto& choice : choices) {
      if (value == choice.second) return Json(choice.first);
    }
    return Json();
  };
  return {std::move(name), choices_text(names), std::move(help), read, write, resumed};
}

// ---- what a table does

// `path` is the file, `prefix` what stands before the names of `table` in messages.
void read_table(const ConfigTable& table, const Json& object, const std::string& path, const std::string& prefix = "");
// All keys, in the table's order.
Json write_table(const ConfigTable& table);
// The same as text for people, a config itself: each key with its meaning as a comment.
std::string explained_table(const ConfigTable& table);

// A file's content. Comments are allowed. Error(usage) with line and column where it is not JSON, where it nests deeper than
// anybody writes, and where a key is given twice.
Json parse_config_text(std::string_view text, const std::string& path);
// Of `assignment`, "optimizer.lr=1e-4": sets it in `object`. What is no JSON is a string. Error(usage).
void assign(Json& object, const std::string& assignment);

}  // namespace fsdpctl::train
