#include "formats/codec/numpy_pickle.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string>

#include "lib/base/box.h"
#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

struct SimpleType {
  std::string_view code;             // what numpy.dtype() is called with
  std::string_view name;             // what str() of it prints in native order
};

constexpr SimpleType kSimpleTypes[] = {
    {"b1", "bool"}, {"i1", "int8"}, {"i2", "int16"}, {"i4", "int32"}, {"i8", "int64"}, {"u1", "uint8"},
    {"u2", "uint16"}, {"u4", "uint32"}, {"u8", "uint64"}, {"f2", "float16"}, {"f4", "float32"}, {"f8", "float64"},
    {"f16", "float128"}, {"c8", "complex64"}, {"c16", "complex128"}, {"c32", "complex256"},
};

struct NumpyType {
  std::string text;                  // "float64", ">f4", "<U3", "|S5"
  uint64_t item = 0;                 // bytes
};

std::optional<uint64_t> code_number(std::string_view code) {
  uint64_t number = 0;
  const auto [stop, status] = std::from_chars(code.data() + 1, code.data() + code.size(), number);
  if (code.size() < 2 || status != std::errc() || stop != code.data() + code.size() || number > UINT32_MAX) return std::nullopt;
  return number;
}

// `order` is '<', '>' or '|'.
std::optional<NumpyType> numpy_type(std::string_view code, char order) {
  const auto number = code_number(code);
  if (!number) return std::nullopt;
  if (code[0] == 'S') return NumpyType{fmt::format("|{}", code), *number};
  if (code[0] == 'U') return NumpyType{fmt::format("{}{}", order == '>' ? '>' : '<', code), *number * 4};
  for (const SimpleType& simple : kSimpleTypes) {
    if (simple.code != code) continue;
    if (order == '>' && *number > 1) return NumpyType{fmt::format(">{}", code), *number};
    return NumpyType{std::string(simple.name), *number};
  }
  return std::nullopt;
}

bool is_global(const Value& value, std::string_view module, std::string_view name) {
  return value.is(Kind::global) && value.node<GlobalNode>().module == module && value.node<GlobalNode>().name == name;
}

// numpy.dtype('f8', False, True) with the state (3, '<', None, None, None, -1, -1, 0).
std::optional<NumpyType> read_type(const Value& value) {
  if (!value.is(Kind::object)) return std::nullopt;
  const auto& object = value.node<ObjectNode>();
  if (!is_global(object.callable, "numpy", "dtype") || object.args.items().empty()) return std::nullopt;
  const Value& code = object.args.items()[0];
  if (!code.is(Kind::string) || !object.state.is(Kind::tuple)) return std::nullopt;
  const auto& state = object.state.items();
  // Elements 2 to 4 are the subarray, the names and the fields; metadata may follow the flags.
  if (state.size() != 8 || !state[1].is(Kind::string) || state[1].text().size() != 1) return std::nullopt;
  if (!state[2].is(Kind::none) || !state[3].is(Kind::none) || !state[4].is(Kind::none)) return std::nullopt;
  return numpy_type(code.text(), state[1].text()[0]);
}

bool is_raw(const Value& value) {
  return value.is(Kind::bytes) || value.is(Kind::bytearray) || value.is(Kind::string);   // str: written by Python 2
}

Value make_array(const NumpyType& type, const Value& shape, bool fortran, std::string_view raw) {
  auto* node = new NumpyArrayNode;
  Value array = Value::adopt(node);
  for (const Value& n : shape.items()) {
    if (!n.is(Kind::integer)) throw Error(Exit::damaged, "shape of a numpy array is not made of integers");
    node->shape.push_back(n.as_integer());
  }
  const auto count = checked_count(node->shape);
  if (!count || *count > UINT64_MAX / std::max<uint64_t>(type.item, 1) || *count * type.item != raw.size()) {
    throw Error(Exit::damaged, "numpy array does not fit its shape")
        .saw(fmt::format("{} of {}", dims_text(node->shape), type.text), fmt::format("{} bytes", raw.size()));
  }
  node->dtype = type.text;
  node->fortran = fortran;
  node->raw = raw;
  return array;
}

// ---- back to what Python pickles

Value tuple(std::vector<Value> items) { return Value::sequence(Kind::tuple, std::move(items)); }

Value call(Value callable, Value args, Value state) {
  auto* node = new ObjectNode;
  Value object = Value::adopt(node);
  node->how = ObjectNode::How::reduce;
  node->callable = std::move(callable);
  node->args = std::move(args);
  node->has_state = !state.is(Kind::none);
  node->state = std::move(state);
  return object;
}

Value type_object(std::string_view text) {
  std::string code(text);
  char order = '<';
  for (const SimpleType& simple : kSimpleTypes) {
    if (simple.name == text) code = simple.code;
  }
  if (text.starts_with('<') || text.starts_with('>') || text.starts_with('|')) {
    order = text[0];
    code = text.substr(1);
  }
  if (code.ends_with('1') && code.size() == 2 && code[0] != 'S' && code[0] != 'U') order = '|';
  const bool wide = code[0] == 'U';
  const bool sized = wide || code[0] == 'S';
  const int64_t item = sized ? static_cast<int64_t>(code_number(code).value_or(0)) * (wide ? 4 : 1) : -1;
  const Value none = Value(), sign = Value::string(std::string_view(&order, 1));
  return call(Value::global("numpy", "dtype"),
              tuple({Value::string(code), Value::boolean(false), Value::boolean(true)}),
              tuple({Value::integer(3), sign, none, none, none, Value::integer(item),
                     Value::integer(wide ? 4 : sized ? 1 : -1), Value::integer(wide ? 8 : 0)}));
}

}  // namespace

bool read_numpy_scalar(std::span<const Value> args, Value& result) {
  if (args.size() != 2 || !is_raw(args[1])) return false;
  const auto type = read_type(args[0]);
  if (!type) return false;
  const std::string_view raw = args[1].text();
  if (raw.size() != type->item) {
    throw Error(Exit::damaged, "numpy scalar of the wrong size")
        .saw(fmt::format("{} bytes ({})", type->item, type->text), fmt::format("{} bytes", raw.size()));
  }
  result = Value::numpy_scalar(type->text, std::string(raw));
  return true;
}

bool read_numpy_buffer(std::span<const Value> args, Value& result) {
  if (args.size() != 4 || !is_raw(args[0]) || !args[2].is(Kind::tuple) || !args[3].is(Kind::string)) return false;
  const auto type = read_type(args[1]);
  if (!type) return false;
  result = make_array(*type, args[2], args[3].text() == "F", args[0].text());
  return true;
}

bool read_numpy_state(const Value& state, Value& result) {
  if (!state.is(Kind::tuple)) return false;
  std::span<const Value> parts = state.items();
  if (parts.size() == 5) parts = parts.subspan(1);        // version
  if (parts.size() != 4 || !parts[0].is(Kind::tuple) || !is_raw(parts[3])) return false;
  const auto type = read_type(parts[1]);
  if (!type) return false;
  const bool fortran = (parts[2].is(Kind::boolean) && parts[2].as_boolean()) ||
                       (parts[2].is(Kind::integer) && parts[2].as_integer() != 0);
  result = make_array(*type, parts[0], fortran, parts[3].text());
  return true;
}

Value numpy_object(const Value& value) {
  constexpr std::string_view kModule = "numpy._core.multiarray";   // numpy 1.26 and 2 know it
  if (value.is(Kind::numpy_scalar)) {
    const auto& node = value.node<NumpyScalarNode>();
    return call(Value::global(kModule, "scalar"), tuple({type_object(node.dtype), Value::bytes(node.raw)}), Value());
  }
  const auto& node = value.node<NumpyArrayNode>();
  std::vector<Value> shape;
  for (int64_t n : node.shape) shape.push_back(Value::integer(n));
  return call(Value::global(kModule, "_reconstruct"),
              tuple({Value::global("numpy", "ndarray"), tuple({Value::integer(0)}), Value::bytes("b")}),
              tuple({Value::integer(1), tuple(std::move(shape)), type_object(node.dtype), Value::boolean(node.fortran),
                     Value::bytes(node.raw)}));
}

}  // namespace fsdpctl
