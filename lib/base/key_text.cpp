// key_text() of value.h: str() of a key, and repr() of what is in it.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "lib/base/value.h"
#include "lib/base/value_text.h"

namespace fsdpctl {
namespace {

// As Python writes it: 1.0, 1e+16, inf.
std::string real_text(double d) {
  std::string text = fmt::format("{}", d);
  if (std::isfinite(d) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string complex_text(std::pair<double, double> c) {
  const auto part = [](double d) {              // without the ".0" of whole numbers
    std::string text = real_text(d);
    if (text.ends_with(".0")) text.resize(text.size() - 2);
    return text;
  };
  if (c.first == 0 && !std::signbit(c.first)) return part(c.second) + "j";
  const std::string imaginary = part(c.second);
  return "(" + part(c.first) + (imaginary.starts_with('-') ? "" : "+") + imaginary + "j)";
}

std::string bytes_repr(std::string_view raw) {
  const char quote = raw.find('\'') != std::string_view::npos && raw.find('"') == std::string_view::npos ? '"' : '\'';
  std::string text = {'b', quote};
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') text.append({'\\', c});
    else if (c == '\n' || c == '\r' || c == '\t') text += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else if (byte < 0x20 || byte >= 0x7f) fmt::format_to(std::back_inserter(text), "\\x{:02x}", byte);
    else text += c;
  }
  return text + quote;
}

// The class of what Python would name by its address, or in a way that only its class knows.
std::string unnamed_text(const Value& key) {
  if (key.is(Kind::object)) return "<" + key.node<ObjectNode>().class_name() + ">";
  if (key.is(Kind::global)) return "<class '" + key.node<GlobalNode>().module + "." + key.node<GlobalNode>().name + "'>";
  if (key.is(Kind::numpy_scalar)) return "<numpy." + key.node<NumpyScalarNode>().dtype + " " + bytes_repr(key.node<NumpyScalarNode>().raw) + ">";
  return "<key>";
}

std::string repr(const Value& key) {
  std::string text;
  if (key.is(Kind::string)) {
    append_python_string(text, key.text());
    return text;
  }
  return key_text(key);
}

std::string listed(const std::vector<Value>& items) {
  std::string text;
  for (const Value& v : items) text += (text.empty() ? "" : ", ") + repr(v);
  return text;
}

}  // namespace

std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::none: return "None";
    case Kind::boolean: return key.as_boolean() ? "True" : "False";
    case Kind::integer: return fmt::format("{}", key.as_integer());
    case Kind::real: return real_text(key.as_real());
    case Kind::complex: return complex_text(key.as_complex());
    case Kind::big_integer: case Kind::string: return std::string(key.text());
    case Kind::bytes: return bytes_repr(key.text());
    case Kind::tuple: return "(" + listed(key.items()) + (key.items().size() == 1 ? ",)" : ")");
    case Kind::size: return "torch.Size([" + listed(key.items()) + "])";
    case Kind::frozenset: return key.items().empty() ? "frozenset()" : "frozenset({" + listed(key.items()) + "})";
    default: return key.is_constant() ? std::string(key.text()) : unnamed_text(key);
  }
}

}  // namespace fsdpctl
