#include "formats/numbered_name.h"

#include <fmt/format.h>

#include <string>

namespace fsdpctl {

std::optional<NumberedName> parse_numbered_name(std::string_view name, std::string_view ending) {
  constexpr std::string_view pattern = "-00000-of-00000";   // more digits than five do not occur
  if (!name.ends_with(ending) || name.size() < pattern.size() + ending.size()) return std::nullopt;
  name.remove_suffix(ending.size());
  const std::string_view tail = name.substr(name.size() - pattern.size());
  NumberedName result{name.substr(0, name.size() - pattern.size())};
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool digit = tail[i] >= '0' && tail[i] <= '9';
    if (pattern[i] != '0' ? tail[i] != pattern[i] : !digit) return std::nullopt;
    if (pattern[i] == '0') {
      uint32_t& value = i < 6 ? result.number : result.count;
      value = 10 * value + static_cast<uint32_t>(tail[i] - '0');
    }
  }
  return result;
}

void report_lone_shard(std::string_view name, std::string_view ending, FindingSink& sink) {
  const auto numbered = parse_numbered_name(name, ending);
  if (!numbered || numbered->count <= 1) return;
  sink.report(warning("file is one shard of a set: the other tensors are not read").at(std::string(name))
                  .found_only(fmt::format("shard {} of {}", numbered->number, numbered->count)));
}

}  // namespace fsdpctl
