// A checkpoint as the fixtures' expected.json describes it: names to dtype, shape, SHA-256; names to JSON values.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lib/ckpt/format.h"

namespace fsdpctl {

struct Described {
  std::map<std::string, nlohmann::json> tensors;   // {"dtype", "shape", "sha256"}
  std::map<std::string, nlohmann::json> values;
  std::set<std::string> aliases;                   // names among `tensors` that share another one's bytes
};

// Opens, resolves and reads everything. Throws Error as the commands would.
Described describe_path(const std::string& path);
Described describe_checkpoint(const Checkpoint& checkpoint);

// Differences as lines, at most 20; empty when equal.
std::string compare_described(const Described& expected, const Described& got);

}  // namespace fsdpctl
