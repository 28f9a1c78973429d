#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/base/finding.h"
#include "lib/base/utf8.h"
#include "lib/base/value_json.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxDepth = 1000;       // of a Value, as for pickles
constexpr size_t kMaxJsonDepth = 5000;   // a level of a Value is up to four of JSON

struct Malformed {
  const char* what;
};

void require(bool condition, const char* what) {
  if (!condition) throw Malformed{what};
}

// ---- what a tagged object means. Its content was read before, so inner values are finished.
using Fields = std::vector<std::pair<std::string, Value>>;

const Value* field(const Fields& fields, std::string_view name) {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string text_of(const Value& v) {
  require(v.is(Kind::string), "string expected");
  return std::string(v.text());
}

const std::vector<Value>& list_of(const Value& v, size_t least = 0, size_t most = std::numeric_limits<size_t>::max()) {
  require(v.is(Kind::list) && v.items().size() >= least && v.items().size() <= most, "array of another length expected");
  return v.items();
}

std::string bytes_of(const Value& v) {
  const std::string hex = text_of(v);
  require(hex.size() % 2 == 0, "odd number of hex digits");
  const auto digit = [](char c) {
    require((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'), "hex digit expected");
    return c <= '9' ? c - '0' : c - 'a' + 10;
  };
  std::string raw(hex.size() / 2, '\0');
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = static_cast<char>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  return raw;
}

double real_of(const Value& v) {
  require(v.is(Kind::real), "real number expected");
  return v.as_real();
}

bool is_true(const Fields& fields, std::string_view name) {
  const Value* v = field(fields, name);
  require(v == nullptr || (v->is(Kind::boolean) && v->as_boolean()), "true expected");
  return v != nullptr;
}

TensorIndex index_of(const Value& v) {
  require(v.is(Kind::integer) && v.as_integer() >= 0 && v.as_integer() < kNoTensor, "tensor number expected");
  return static_cast<TensorIndex>(v.as_integer());
}

// Python compares others by what they are: two equal objects are two keys.
bool compares_by_value(const Value& key) {
  if (key.is(Kind::tuple) || key.is(Kind::frozenset) || key.is(Kind::size)) {
    return std::all_of(key.items().begin(), key.items().end(), compares_by_value);
  }
  return key.kind() <= Kind::bytes;
}

void require_different_keys(const std::vector<Entry>& entries) {
  std::unordered_set<std::string_view> texts;
  std::unordered_set<std::string> others;
  texts.reserve(entries.size());
  for (const Entry& e : entries) {
    if (!compares_by_value(e.key)) continue;
    const bool is_new = e.key.is(Kind::string) ? texts.insert(e.key.text()).second : others.insert(value_to_json(e.key, JsonForm::canonical)).second;
    require(is_new, "key twice in one mapping");
  }
}

std::vector<Entry> entries_of(const Value& v) {
  std::vector<Entry> entries;
  for (const Value& pair : list_of(v)) {
    const auto& items = list_of(pair, 2, 2);
    entries.push_back({items[0], items[1]});
  }
  require_different_keys(entries);
  return entries;
}

Value read_int(const Value& v) {
  const std::string text = text_of(v);
  const size_t sign = text.starts_with('-') ? 1 : 0;
  require(text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string::npos, "decimal number expected");
  int64_t small = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), small);
  return error == std::errc() ? Value::integer(small) : Value::big_integer(text);
}

Value read_float(const Value& v) {
  const std::string text = text_of(v);
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (text == "inf") return Value::real(kInf);
  if (text == "-inf") return Value::real(-kInf);
  require(text == "nan", "nan or inf expected");
  return Value::real(std::bit_cast<double>(uint64_t{0x7ff8000000000000}));
}

Value read_float_bits(const Value& v) {
  const std::string text = text_of(v);
  uint64_t bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  require(text.size() == 16 && error == std::errc() && end == text.data() + 16, "16 hex digits expected");
  return Value::real(std::bit_cast<double>(bits));
}

Value read_string(const Value& v) {
  const std::string raw = bytes_of(v);
  require(is_utf8(raw, true), "text is not UTF-8");
  return Value::string(raw);
}

Value read_size(const Value& v) {
  for (const Value& item : list_of(v)) require(item.is(Kind::integer), "integer expected");
  return Value::sequence(Kind::size, list_of(v));
}

Value read_mapping(Kind kind, const Value& v, const Fields& fields) {
  Value result = Value::mapping(kind, entries_of(v));
  if (const Value* attributes = field(fields, "attributes")) result.mutable_node<MappingNode>().attributes = *attributes;
  return result;
}

Value read_numpy_array(const Value& v) {
  const auto& parts = list_of(v, 4, 4);
  auto* array = new NumpyArrayNode;
  Value result = Value::adopt(array);
  array->dtype = text_of(parts[0]);
  uint64_t elements = 1;
  for (const Value& n : list_of(parts[1])) {
    require(n.is(Kind::integer) && n.as_integer() >= 0, "size expected");
    array->shape.push_back(n.as_integer());
    const auto size = static_cast<uint64_t>(n.as_integer());
    require(size == 0 || elements <= std::numeric_limits<int64_t>::max() / size, "array is too large");
    elements *= size;
  }
  const std::string order = text_of(parts[2]);
  require(order == "C" || order == "F", "C or F expected");
  array->fortran = order == "F";
  array->raw = bytes_of(parts[3]);
  require(elements == 0 ? array->raw.empty() : array->raw.size() % elements == 0, "array has other bytes than its shape");
  return result;
}

Value read_tensor(const Value& v, const Fields& fields) {
  const TensorLeaf leaf{index_of(v), is_true(fields, "parameter"), is_true(fields, "requires_grad")};
  const Value* attributes = field(fields, "attributes");
  require(attributes == nullptr || attributes->is_mapping(), "attributes are no dict");
  return attributes ? Value::tensor(leaf, *attributes) : Value::tensor(leaf);
}

Value read_object(const Value& v) {
  const auto& parts = list_of(v, 6, 7);
  const std::string how = text_of(parts[0]);
  require(how == "reduce" || how == "newobj", "reduce or newobj expected");
  auto* object = new ObjectNode;
  Value result = Value::adopt(object);
  object->how = how == "reduce" ? ObjectNode::How::reduce : ObjectNode::How::newobj;
  object->callable = parts[1];
  require(parts[2].is(Kind::tuple), "arguments are no tuple");
  object->args = parts[2];
  require(parts[3].is(Kind::none) || parts[3].is_mapping(), "keyword arguments are no dict");
  object->kwargs = parts[3];
  object->items = list_of(parts[4]);
  object->entries = entries_of(parts[5]);
  object->has_state = parts.size() == 7;
  if (object->has_state) object->state = parts[6];
  return result;
}

Value read_pair(const Value& v, Value (*make)(std::string_view, std::string_view)) {
  const auto& parts = list_of(v, 2, 2);
  return make(text_of(parts[0]), text_of(parts[1]));
}

Value read_tagged(const Fields& fields) {
  require(!fields.empty(), "object without a tag");
  const std::string& tag = fields.front().first;
  const Value& v = fields.front().second;
  const bool more = tag == "tensor" || tag == "counter" || tag.ends_with("dict");
  require(more || fields.size() == 1, "object with more than a tag");
  for (size_t i = 1; i < fields.size(); ++i) {
    const std::string& name = fields[i].first;
    require(name == "attributes" || (tag == "tensor" && (name == "parameter" || name == "requires_grad")), "unknown field");
  }
  if (tag == "int") return read_int(v);
  if (tag == "float") return read_float(v);
  if (tag == "float_bits") return read_float_bits(v);
  if (tag == "complex") {
    const auto& parts = list_of(v, 2, 2);
    return Value::complex(real_of(parts[0]), real_of(parts[1]));
  }
  if (tag == "str_surrogatepass_hex") return read_string(v);
  if (tag == "bytes") return Value::bytes(bytes_of(v));
  if (tag == "bytearray") return Value::bytearray(bytes_of(v));
  if (tag == "tuple") return Value::sequence(Kind::tuple, list_of(v));
  if (tag == "torch.Size") return read_size(v);
  if (tag == "set") return Value::sequence(Kind::set, list_of(v));
  if (tag == "frozenset") return Value::sequence(Kind::frozenset, list_of(v));
  if (tag == "dict") return read_mapping(Kind::dict, v, fields);
  if (tag == "ordered_dict") return read_mapping(Kind::ordered_dict, v, fields);
  if (tag == "default_dict") return read_mapping(Kind::default_dict, v, fields);
  if (tag == "counter") return read_mapping(Kind::counter, v, fields);
  if (tag == "torch.dtype") return Value::constant(Kind::dtype, text_of(v));
  if (tag == "torch.device") return Value::constant(Kind::device, text_of(v));
  if (tag == "torch.layout") return Value::constant(Kind::layout, text_of(v));
  if (tag == "torch.memory_format") return Value::constant(Kind::memory_format, text_of(v));
  if (tag == "torch.qscheme") return Value::constant(Kind::qscheme, text_of(v));
  if (tag == "numpy_scalar") {
    const auto& parts = list_of(v, 2, 2);
    return Value::numpy_scalar(text_of(parts[0]), bytes_of(parts[1]));
  }
  if (tag == "numpy_array") return read_numpy_array(v);
  if (tag == "tensor") return read_tensor(v, fields);
  if (tag == "storage") {
    const auto& parts = list_of(v, 2, 2);
    return Value::storage(index_of(parts[0]), text_of(parts[1]));
  }
  if (tag == "global") return read_pair(v, &Value::global);
  if (tag == "object") return read_object(v);
  throw Malformed{"unknown tag"};
}

size_t depth_of(const Value& v);

size_t depth_of(const std::vector<Entry>& entries) {
  size_t depth = 0;
  for (const Entry& e : entries) depth = std::max({depth, depth_of(e.key), depth_of(e.value)});
  return depth;
}

size_t depth_of(const std::vector<Value>& items) {
  size_t depth = 0;
  for (const Value& v : items) depth = std::max(depth, depth_of(v));
  return depth;
}

// Recursive, but not deeper than the JSON that it was read from.
size_t depth_of(const Value& v) {
  if (v.is_sequence()) return 1 + depth_of(v.items());
  if (v.is_mapping()) return 1 + std::max(depth_of(v.entries()), depth_of(v.node<MappingNode>().attributes));
  if (v.is(Kind::tensor)) return depth_of(v.tensor_attributes());
  if (!v.is(Kind::object)) return 0;
  const auto& o = v.node<ObjectNode>();
  return 1 + std::max({depth_of(o.callable), depth_of(o.args), depth_of(o.kwargs), depth_of(o.state), depth_of(o.items),
                       depth_of(o.entries)});
}

// Builds Values from nlohmann's events, so that no tree of JSON nodes is ever made.
class Builder {
 public:
  using Json = nlohmann::json;

  bool null() { return add(Value()); }
  bool boolean(bool b) { return add(Value::boolean(b)); }
  bool number_integer(int64_t i) { return add(Value::integer(i)); }
  bool number_unsigned(uint64_t u) {
    require(u <= std::numeric_limits<int64_t>::max(), "number is too large");
    return add(Value::integer(static_cast<int64_t>(u)));
  }
  bool number_float(double d, const std::string& text) {
    require(text.find_first_of(".eE") != std::string::npos, "number is too large");
    return add(Value::real(d));
  }
  bool string(const std::string& s) { return add(Value::string(s)); }
  bool binary(const Json::binary_t&) { return false; }

  bool start_array(size_t) { return begin(); }
  bool end_array() {
    std::vector<Value> items = std::move(frames_.back().items);
    frames_.pop_back();
    return add(Value::sequence(Kind::list, std::move(items)));
  }

  bool start_object(size_t) {
    begin();
    frames_.back().object = true;
    return true;
  }
  bool key(const std::string& name) {
    for (const auto& [known, value] : frames_.back().fields) require(known != name, "object has a key twice");
    require(frames_.back().fields.size() < 8, "object with too many keys");
    frames_.back().fields.emplace_back(name, Value());
    return true;
  }
  bool end_object() {
    Fields fields = std::move(frames_.back().fields);
    frames_.pop_back();
    return add(read_tagged(fields));
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    error_position = position;
    return false;
  }

  Value result;
  size_t error_position = 0;

 private:
  struct Frame {
    bool object = false;
    std::vector<Value> items;
    Fields fields;
  };

  bool begin() {
    require(frames_.size() < kMaxJsonDepth, "values are nested too deeply");
    frames_.emplace_back();
    return true;
  }

  bool add(Value v) {
    if (frames_.empty()) {
      result = std::move(v);
    } else if (frames_.back().object) {
      frames_.back().fields.back().second = std::move(v);
    } else {
      frames_.back().items.push_back(std::move(v));
    }
    return true;
  }

  std::vector<Frame> frames_;
};

}  // namespace

Value value_from_json(std::string_view text, const std::string& file_name) {
  Builder builder;
  try {
    if (nlohmann::json::sax_parse(text, &builder)) {
      require(depth_of(builder.result) <= kMaxDepth, "values are nested too deeply");
      return std::move(builder.result);
    }
  } catch (const Malformed& m) {
    throw Error(Exit::damaged, "stored value is malformed").at(file_name).found_only(m.what);
  }
  throw Error(Exit::damaged, "stored value is no JSON").at(file_name).offset(builder.error_position);
}

}  // namespace fsdpctl
