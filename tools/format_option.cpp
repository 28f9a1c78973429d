#include "tools/format_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "lib/base/nearest_name.h"

namespace fsdpctl {
namespace {

// What people call the formats, by the endings of files or by who wrote them.
std::string usual_format_name(const std::string& text, const std::vector<std::string>& names) {
  constexpr std::pair<std::string_view, std::string_view> kOther[] = {
      {"pt", "torch"},       {"pth", "torch"},      {"bin", "torch"},  {"ckpt", "torch"},       {"pytorch", "torch"},
      {"torch.save", "torch"}, {"distcp", "dcp"},   {"dist", "dcp"},   {"distributed", "dcp"},  {"st", "safetensors"},
      {"hf", "safetensors"}, {"huggingface", "safetensors"},           {"h5", "hdf5"},          {"hdf", "hdf5"}};
  std::string name = text;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  name.erase(0, std::min(name.find_first_not_of('.'), name.size()));
  for (const auto& other : kOther) {
    if (name == other.first) return std::string(other.second);
  }
  return nearest_name(name, names);
}

}  // namespace

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
  const std::string near = usual_format_name(text, names);
  const bool flag = option.starts_with("--");
  throw Error(Exit::usage, "unknown format")
      .key(option)
      .saw(fmt::format("one of {}", fmt::join(names, ", ")), "'" + text + "'")
      .try_(near.empty() ? "" : option + (flag ? " " : "=") + near);
}

}  // namespace fsdpctl
