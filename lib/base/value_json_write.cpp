#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <iterator>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/utf8.h"
#include "lib/base/value_json.h"
#include "lib/base/value_text.h"

namespace fsdpctl {
namespace {

// Writes JSON, or the same structure as Python's repr() prints it: sets are sorted by that.
class Writer : private ValueText {
 public:
  Writer(std::string& out, JsonForm form, bool python, const Receive* receive = nullptr)
      : ValueText(out, python, receive), form_(form) {}

  void all(const Value& v) {
    value(v);
    hand_on_all();
  }

  void value(const Value& v) {
    hand_on();
    switch (v.kind()) {
      case Kind::none: out_ += python_ ? "None" : "null"; return;
      case Kind::boolean: boolean(v.as_boolean()); return;
      case Kind::integer: integer(v.as_integer()); return;
      case Kind::big_integer: tagged("int", v.text()); return;
      case Kind::real: real(v.as_real()); return;
      case Kind::complex: complex(v.as_complex()); return;
      case Kind::string: string(v.text()); return;
      case Kind::bytes: tagged_hex("bytes", v.text()); return;
      case Kind::bytearray: tagged_hex("bytearray", v.text()); return;
      case Kind::list: list(v.items()); return;
      case Kind::tuple: tagged_list("tuple", v.items()); return;
      case Kind::size: size(v.items()); return;
      case Kind::set: set("set", v.items()); return;
      case Kind::frozenset: set("frozenset", v.items()); return;
      case Kind::dict: case Kind::ordered_dict: case Kind::counter: case Kind::default_dict: mapping(v); return;
      case Kind::dtype: case Kind::device: case Kind::layout: case Kind::memory_format: case Kind::qscheme:
        constant(v);
        return;
      case Kind::numpy_scalar: numpy_scalar(v.node<NumpyScalarNode>()); return;
      case Kind::numpy_array: numpy_array(v.node<NumpyArrayNode>()); return;
      case Kind::tensor: tensor(v); return;
      case Kind::storage: storage(v.node<StorageNode>()); return;
      case Kind::global: global(v.node<GlobalNode>()); return;
      case Kind::object: object(v.node<ObjectNode>()); return;
      case Kind::token: assert(false); return;   // never outlives its reader
    }
  }

 private:
  bool shown() const { return form_ == JsonForm::shown; }
  bool stored() const { return form_ == JsonForm::stored; }

  void list(const std::vector<Value>& items) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) comma();
      value(items[i]);
    }
    out_ += ']';
  }

  void tagged_list(std::string_view tag, const std::vector<Value>& items) {
    open(tag);
    list(items);
    out_ += '}';
  }

  void pairs(const std::vector<Entry>& entries) {
    out_ += '[';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i) comma();
      out_ += '[';
      value(entries[i].key);
      comma();
      value(entries[i].value);
      out_ += ']';
    }
    out_ += ']';
  }

  // ---- kinds
  void boolean(bool b) { out_ += python_ ? (b ? "True" : "False") : (b ? "true" : "false"); }

  void integer(int64_t i) {
    constexpr int64_t kExact = int64_t{1} << 53;   // what every JSON reader keeps
    const std::string text = fmt::format("{}", i);
    if (-kExact < i && i < kExact) {
      out_ += text;
    } else {
      tagged("int", text);
    }
  }

  void real(double d) {
    if (std::isfinite(d)) {
      const std::string text = fmt::format("{}", d);
      out_ += text;
      if (text.find_first_of(".e") == std::string::npos) out_ += ".0";
    } else if (std::isnan(d) && !shown() && std::bit_cast<uint64_t>(d) != 0x7ff8000000000000) {
      tagged("float_bits", hex64(std::bit_cast<uint64_t>(d)));
    } else {
      tagged("float", std::isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
    }
  }

  void complex(std::pair<double, double> c) {
    open("complex");
    out_ += '[';
    real(c.first);
    comma();
    real(c.second);
    out_ += "]}";
  }

  void string(std::string_view text) {
    if (is_utf8(text)) {
      quoted(text);
    } else {
      tagged_hex("str_surrogatepass_hex", text);
    }
  }

  // torch.Size holds plain numbers, big ones too.
  void size(const std::vector<Value>& items) {
    if (stored()) return tagged_list("torch.Size", items);
    open("torch.Size");
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i) comma();
      if (items[i].is(Kind::integer)) {
        fmt::format_to(std::back_inserter(out_), "{}", items[i].as_integer());
      } else {
        value(items[i]);
      }
    }
    out_ += "]}";
  }

  // Sorted by Python's name of the type of the item's JSON, then by str() of that.
  void set(std::string_view tag, const std::vector<Value>& items) {
    if (stored() || items.size() < 2) return tagged_list(tag, items);
    struct Row {
      std::string type, order, text;
    };
    std::vector<Row> rows(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      Row& row = rows[i];
      Writer(row.text, form_, true).value(items[i]);
      const bool plain = items[i].is(Kind::string) && row.text.front() != '{';
      row.order = plain ? std::string(items[i].text()) : row.text;
      row.type = type_name(items[i], row.text);
      if (python_) continue;
      row.text.clear();
      Writer(row.text, form_, false).value(items[i]);
    }
    std::sort(rows.begin(), rows.end(),
              [](const Row& a, const Row& b) { return std::tie(a.type, a.order) < std::tie(b.type, b.order); });
    open(tag);
    out_ += '[';
    for (size_t i = 0; i < rows.size(); ++i) {
      if (i) comma();
      out_ += rows[i].text;
    }
    out_ += "]}";
  }

  static std::string_view type_name(const Value& v, const std::string& python_text) {
    if (python_text.front() == '{') return "dict";
    switch (v.kind()) {
      case Kind::none: return "NoneType";
      case Kind::boolean: return "bool";
      case Kind::integer: return "int";
      case Kind::real: return "float";
      case Kind::string: return "str";
      default: return "list";
    }
  }

  void mapping(const Value& v) {
    const bool plain = v.is(Kind::dict) || shown();
    open(v.is(Kind::counter) ? "counter" : plain ? "dict" : v.is(Kind::ordered_dict) ? "ordered_dict" : "default_dict");
    pairs(v.entries());
    const Value& attributes = v.node<MappingNode>().attributes;
    if (!shown() && !attributes.is(Kind::none)) {
      field("attributes");
      value(attributes);
    }
    out_ += '}';
  }

  void constant(const Value& v) {
    if (stored()) {
      const bool dtype = v.is(Kind::dtype), device = v.is(Kind::device), layout = v.is(Kind::layout);
      tagged(dtype                     ? "torch.dtype"
             : device                  ? "torch.device"
             : layout                  ? "torch.layout"
             : v.is(Kind::qscheme)     ? "torch.qscheme"
                                       : "torch.memory_format",
             v.text());
    } else if (shown() && v.is(Kind::qscheme)) {
      tagged("object", "torch.qscheme");
    } else {
      tagged("torch", v.text());
    }
  }

  void numpy_scalar(const NumpyScalarNode& scalar) {
    open("numpy_scalar");
    out_ += '[';
    string(scalar.dtype);
    comma();
    hex(scalar.raw);
    out_ += "]}";
  }

  void numpy_array(const NumpyArrayNode& array) {
    open("numpy_array");
    out_ += '[';
    string(array.dtype);
    comma();
    out_ += '[';
    for (size_t d = 0; d < array.shape.size(); ++d) {
      if (d) comma();
      fmt::format_to(std::back_inserter(out_), "{}", array.shape[d]);
    }
    out_ += ']';
    comma();
    if (stored()) {
      quoted(array.fortran ? "F" : "C");
      comma();
      hex(array.raw);
    } else {
      const std::string bytes = row_major_bytes(array);
      Sha256 sha;
      sha.update(std::as_bytes(std::span(bytes)));
      quoted(sha.hex());
    }
    out_ += "]}";
  }

  void tensor(const Value& v) {
    const TensorLeaf leaf = v.as_tensor();
    open("tensor");
    fmt::format_to(std::back_inserter(out_), "{}", leaf.index);
    if (!shown()) {
      if (leaf.parameter) field("parameter"), boolean(true);
      if (leaf.requires_grad) field("requires_grad"), boolean(true);
      if (const Value attributes = v.tensor_attributes(); !attributes.is(Kind::none)) field("attributes"), value(attributes);
    }
    out_ += '}';
  }

  void storage(const StorageNode& node) {
    open("storage");
    fmt::format_to(std::back_inserter(out_), "[{}", node.index);
    comma();
    string(node.storage_class);
    out_ += "]}";
  }

  void global(const GlobalNode& node) {
    open("global");
    out_ += '[';
    string(node.module);
    comma();
    string(node.name);
    out_ += "]}";
  }

  void object(const ObjectNode& node) {
    open("object");
    if (shown()) {
      string(node.class_name());
    } else {
      out_ += '[';
      quoted(node.how == ObjectNode::How::reduce ? "reduce" : "newobj");
      for (const Value* part : {&node.callable, &node.args, &node.kwargs}) comma(), value(*part);
      comma(), list(node.items);
      comma(), pairs(node.entries);
      if (node.has_state) comma(), value(node.state);
      out_ += ']';
    }
    out_ += '}';
  }

  JsonForm form_;
};

}  // namespace

void append_value_json(std::string& out, const Value& value, JsonForm form) { Writer(out, form, false).value(value); }

void value_json_in_pieces(const Value& value, JsonForm form, const std::function<void(std::string_view piece)>& receive) {
  std::string text;
  Writer(text, form, false, &receive).all(value);
}

uint64_t value_json_size(const Value& value, JsonForm form) {
  uint64_t size = 0;
  value_json_in_pieces(value, form, [&size](std::string_view piece) { size += piece.size(); });
  return size;
}

std::string value_to_json(const Value& value, JsonForm form) {
  std::string text;
  append_value_json(text, value, form);
  return text;
}

}  // namespace fsdpctl
