#include "formats/codec/python_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/codec/numpy_pickle.h"

namespace fsdpctl {
namespace {

using Args = std::span<const Value>;

bool is_list_or_tuple(const Value& value) { return value.is(Kind::list) || value.is(Kind::tuple); }

// Pairs of a list, as Python 2 gives them to OrderedDict.
bool pairs(const Value& list, std::vector<Entry>& entries) {
  if (!is_list_or_tuple(list)) return false;
  for (const Value& pair : list.items()) {
    if (!is_list_or_tuple(pair) || pair.items().size() != 2) return false;
    entries.push_back({pair.items()[0], pair.items()[1]});
  }
  return true;
}

bool make_mapping(Kind kind, Args args, Value& result) {
  std::vector<Entry> entries;
  if (args.size() > 1) return false;
  if (args.size() == 1) {
    if (args[0].is(Kind::dict)) {
      entries = args[0].entries();
    } else if (!pairs(args[0], entries)) {
      return false;
    }
  }
  result = Value::mapping(kind, std::move(entries));
  return true;
}

bool make_default_dict(Args args, Value& result) {
  if (args.size() > 1 || (args.size() == 1 && !args[0].is(Kind::none) && !args[0].is(Kind::global))) return false;
  result = Value::mapping(Kind::default_dict);
  if (!args.empty()) result.mutable_node<MappingNode>().attributes = args[0];
  return true;
}

bool make_sequence(Kind kind, Args args, Value& result) {
  if (args.size() > 1) return false;
  if (args.size() == 1 && !args[0].is_sequence()) return false;
  result = Value::sequence(kind, args.empty() ? std::vector<Value>() : args[0].items());
  return true;
}

bool make_size(Args args, Value& result) {
  if (args.size() != 1 || !is_list_or_tuple(args[0])) return false;
  for (const Value& n : args[0].items()) {
    if (!n.is(Kind::integer)) return false;
  }
  result = Value::sequence(Kind::size, args[0].items());
  return true;
}

// Code points up to 255 as bytes: how protocol 2 spells bytes. `utf8` is valid.
std::optional<std::string> latin1_bytes(std::string_view utf8) {
  std::string bytes;
  bytes.reserve(static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; })));
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      bytes += utf8[i];
    } else if ((lead == 0xC2 || lead == 0xC3) && i + 1 < utf8.size()) {
      bytes += static_cast<char>((lead & 3) << 6 | (static_cast<unsigned char>(utf8[++i]) & 0x3F));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

bool is_latin1(const Value& encoding) {
  return encoding.is(Kind::string) && (encoding.text() == "latin1" || encoding.text() == "latin-1");
}

std::optional<std::string> encoded(Args args) {
  if (args.size() != 2 || !args[0].is(Kind::string) || !is_latin1(args[1])) return std::nullopt;
  return latin1_bytes(args[0].text());
}

Value without_copy(Kind kind, std::string&& raw) {   // they may be long
  auto* node = new TextNode(kind);
  node->text = std::move(raw);
  return Value::adopt(node);
}

// bytes() and bytearray(): empty, of bytes, or of a string in latin-1.
bool make_bytes(Kind kind, Args args, Value& result) {
  std::optional<std::string> raw;
  if (args.empty()) raw.emplace();
  if (args.size() == 1 && (args[0].is(Kind::bytes) || args[0].is(Kind::bytearray))) raw.emplace(args[0].text());
  if (args.size() == 2) raw = encoded(args);
  if (!raw) return false;
  result = without_copy(kind, std::move(*raw));
  return true;
}

std::optional<double> real(const Value& value) {
  if (value.is(Kind::real)) return value.as_real();
  if (value.is(Kind::integer)) return static_cast<double>(value.as_integer());
  return std::nullopt;
}

bool make_complex(Args args, Value& result) {
  if (args.size() != 2) return false;
  const auto re = real(args[0]), im = real(args[1]);
  if (!re || !im) return false;
  result = Value::complex(*re, *im);
  return true;
}

bool make_device(Args args, Value& result) {
  if (args.empty() || args.size() > 2 || !args[0].is(Kind::string)) return false;
  std::string text(args[0].text());
  if (args.size() == 2) {
    if (!args[1].is(Kind::integer)) return false;
    text += fmt::format(":{}", args[1].as_integer());
  }
  result = Value::constant(Kind::device, text);
  return true;
}

bool make_layout(Args args, Value& result) {
  if (args.size() != 1 || !args[0].is(Kind::string)) return false;
  result = Value::constant(Kind::layout, args[0].text());
  return true;
}

}  // namespace

bool call_python(PythonRole role, Args args, bool newobj, Value& result) {
  // cls.__new__ of a mutable container ignores its arguments: only __init__ would fill it.
  const bool fills_later = role == PythonRole::ordered_dict || role == PythonRole::counter || role == PythonRole::set ||
                           role == PythonRole::default_dict || role == PythonRole::dict || role == PythonRole::list ||
                           role == PythonRole::bytearray;
  if (newobj && fills_later && !args.empty()) return false;
  switch (role) {
    case PythonRole::ordered_dict: return make_mapping(Kind::ordered_dict, args, result);
    case PythonRole::counter: return make_mapping(Kind::counter, args, result);
    case PythonRole::dict: return make_mapping(Kind::dict, args, result);
    case PythonRole::default_dict: return make_default_dict(args, result);
    case PythonRole::list: return make_sequence(Kind::list, args, result);
    case PythonRole::tuple: return make_sequence(Kind::tuple, args, result);
    case PythonRole::set: return make_sequence(Kind::set, args, result);
    case PythonRole::frozenset: return make_sequence(Kind::frozenset, args, result);
    case PythonRole::bytes: return make_bytes(Kind::bytes, args, result);
    case PythonRole::bytearray: return make_bytes(Kind::bytearray, args, result);
    case PythonRole::complex: return make_complex(args, result);
    case PythonRole::size: return make_size(args, result);
    case PythonRole::device: return make_device(args, result);
    case PythonRole::layout: return make_layout(args, result);
    case PythonRole::codecs_encode: {
      auto raw = encoded(args);
      if (raw) result = without_copy(Kind::bytes, std::move(*raw));
      return raw.has_value();
    }
    case PythonRole::numpy_scalar: read_numpy_scalar(args, result); return args.size() == 2;
    case PythonRole::numpy_frombuffer: read_numpy_buffer(args, result); return args.size() == 4;
    case PythonRole::numpy_reconstruct:   // an empty shell that BUILD fills
      return args.size() == 3 && args[0].is(Kind::global) && args[0].node<GlobalNode>().module == "numpy" &&
             args[0].node<GlobalNode>().name == "ndarray";
    default: return false;
  }
}

}  // namespace fsdpctl
