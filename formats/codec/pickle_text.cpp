#include "formats/codec/pickle_text.h"

#include <charconv>
#include <cstdint>

namespace fsdpctl {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// Exactly `digits` hexadecimal digits at `at`.
std::optional<uint32_t> hex(std::string_view text, size_t at, size_t digits) {
  if (at + digits > text.size()) return std::nullopt;
  uint32_t value = 0;
  const char* first = text.data() + at;
  const auto [stop, status] = std::from_chars(first, first + digits, value, 16);
  if (status != std::errc() || stop != first + digits) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::string> unescape_string(std::string_view line) {
  if (line.size() < 2 || (line.front() != '\'' && line.front() != '"') || line.back() != line.front()) return std::nullopt;
  line = line.substr(1, line.size() - 2);
  constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out += line[i];
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    if (const size_t at = kLetters.find(line[i]); at != std::string_view::npos) {
      out += kMeanings[at];
    } else if (line[i] == 'x') {
      const auto code = hex(line, i + 1, 2);
      if (!code) return std::nullopt;
      out += static_cast<char>(*code);
      i += 2;
    } else if (line[i] >= '0' && line[i] <= '7') {
      unsigned code = 0;
      size_t end = i;
      while (end < line.size() && end < i + 3 && line[end] >= '0' && line[end] <= '7') {
        code = code * 8 + static_cast<unsigned>(line[end++] - '0');
      }
      out += static_cast<char>(code);
      i = end - 1;
    } else {
      out += '\\';
      out += line[i];
    }
  }
  return out;
}

std::optional<std::string> unescape_unicode(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    const char next = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
    if (next == 'u' || next == 'U') {
      const size_t digits = next == 'u' ? 4 : 8;
      const auto code = hex(line, i + 2, digits);
      if (!code || *code > 0x10FFFF) return std::nullopt;
      append_utf8(out, *code);
      i += 1 + digits;
    } else {
      append_utf8(out, static_cast<unsigned char>(line[i]));
      // raw-unicode-escape leaves a doubled backslash doubled, and no escape begins at the second one.
      if (next == '\\') {
        out += '\\';
        ++i;
      }
    }
  }
  return out;
}

}  // namespace fsdpctl
