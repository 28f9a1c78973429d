// The text forms inside pickles: UTF-8 that may hold lone surrogates, and the escapes of protocol 0.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fsdpctl {

// Python's "surrogatepass": UTF-8, with surrogates allowed as 3-byte sequences.
bool is_utf8(std::string_view bytes);
// A line of STRING: Python 2's repr of a str, quotes included.
std::optional<std::string> unescape_string(std::string_view line);
// A line of UNICODE: latin-1 with \uXXXX and \UXXXXXXXX, as UTF-8.
std::optional<std::string> unescape_unicode(std::string_view line);

}  // namespace fsdpctl
