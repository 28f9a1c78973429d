#include "lib/base/shell_quoted.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace fsdpctl {

std::string shell_quoted(const std::string& argument) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./=:,+@%^").find(c) != std::string_view::npos;
  };
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), plain)) return argument;
  std::string quoted = "'";
  for (const char c : argument) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_unquoted(const std::string& quoted) {
  if (!quoted.starts_with('\'')) return quoted;
  std::string argument;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    argument += quoted[i];
    if (quoted[i] == '\'') i += 3;
  }
  return argument;
}

}  // namespace fsdpctl
