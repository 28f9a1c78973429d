// The escapes of strings in protocol 0.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdpctl {

// A line of STRING: Python 2's repr of a str, quotes included.
std::optional<std::string> unescape_string(std::string_view line);
// A line of UNICODE: latin-1 with \uXXXX and \UXXXXXXXX, as UTF-8.
std::optional<std::string> unescape_unicode(std::string_view line);

}  // namespace fsdpctl
