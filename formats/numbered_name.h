// Names of files that say which one of how many they are, as Hugging Face's tools give them: model-00002-of-00003.safetensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lib/base/finding.h"

namespace fsdpctl {

struct NumberedName {
  std::string_view set;            // "model"; a view on the name
  uint32_t number = 0, count = 0;  // 2 of 3
};
// Of a name with this ending, the dot included.
std::optional<NumberedName> parse_numbered_name(std::string_view name, std::string_view ending);

// A warning for a file that is one of several and was opened by itself.
void report_lone_shard(std::string_view name, std::string_view ending, FindingSink& sink);

}  // namespace fsdpctl
