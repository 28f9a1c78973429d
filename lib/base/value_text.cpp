#include "lib/base/value_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace fsdpctl {

void append_python_string(std::string& out, std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += quote;
}

void ValueText::hand_on_all() {
  if (receive_ == nullptr) return;
  (*receive_)(out_);
  out_.clear();
}

void ValueText::open(std::string_view tag) {
  out_ += '{';
  quoted(tag);
  out_ += python_ ? ": " : ":";
}

void ValueText::field(std::string_view name) {
  comma();
  quoted(name);
  out_ += python_ ? ": " : ":";
}

void ValueText::json_string(std::string_view text) {
  out_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out_), "\\u{:04x}", c);
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

void ValueText::hex(std::string_view raw) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const char quote = python_ ? '\'' : '"';
  if (receive_ == nullptr) out_.reserve(out_.size() + 2 * raw.size() + 2);
  out_ += quote;
  for (size_t begin = 0; begin < raw.size(); begin += kPiece) {
    for (const char c : raw.substr(begin, kPiece)) {
      const auto byte = static_cast<unsigned char>(c);
      out_ += kDigits[byte >> 4];
      out_ += kDigits[byte & 15];
    }
    hand_on();
  }
  out_ += quote;
}

void ValueText::tagged(std::string_view tag, std::string_view text) {
  open(tag);
  quoted(text);
  out_ += '}';
}

void ValueText::tagged_hex(std::string_view tag, std::string_view raw) {
  open(tag);
  hex(raw);
  out_ += '}';
}

// Row-major bytes of an array that may lie in Fortran order.
std::string row_major_bytes(const NumpyArrayNode& array) {
  if (!array.fortran || array.shape.size() < 2 || array.raw.empty()) return array.raw;
  uint64_t elements = 1;
  for (int64_t n : array.shape) elements *= static_cast<uint64_t>(n);
  const uint64_t item = array.raw.size() / elements;
  std::vector<uint64_t> strides(array.shape.size(), item);
  for (size_t d = 1; d < strides.size(); ++d) strides[d] = strides[d - 1] * static_cast<uint64_t>(array.shape[d - 1]);
  std::string bytes;
  bytes.reserve(array.raw.size());
  std::vector<int64_t> index(array.shape.size(), 0);
  for (uint64_t e = 0; e < elements; ++e) {
    uint64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += static_cast<uint64_t>(index[d]) * strides[d];
    bytes.append(array.raw, at, item);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == array.shape[d];) index[d] = 0;
  }
  return bytes;
}

}  // namespace fsdpctl
