#include "tools/format_option.h"

#include <fmt/format.h>

#include "lib/base/nearest_name.h"

namespace fsdpctl {

std::vector<std::string> format_names(const FormatList& formats) {
  std::vector<std::string> names;
  for (const auto& format : formats) {
    if (format->capabilities().writes) names.emplace_back(format->name());
  }
  return names;
}

std::string format_choices(const FormatList& formats) {
  return fmt::format("{}", fmt::join(format_names(formats), "|"));
}

const Format* parse_format(const std::string& option, const std::string& text, const FormatList& formats) {
  const Format* format = find_format(formats, text);
  if (format != nullptr && format->capabilities().writes) return format;
  const std::vector<std::string> names = format_names(formats);
  const std::string near = nearest_name(text, names);
  const bool flag = option.starts_with("--");
  throw Error(Exit::usage, "unknown format")
      .key(option)
      .saw(fmt::format("one of {}", fmt::join(names, ", ")), "'" + text + "'")
      .try_(near.empty() ? "" : option + (flag ? " " : "=") + near);
}

}  // namespace fsdpctl
