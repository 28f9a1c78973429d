#include "tools/value_text.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "lib/base/dtype.h"
#include "lib/base/element.h"
#include "lib/base/utf8.h"
#include "lib/base/value_json.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

constexpr size_t kMostItems = 8;        // of one container; of one in another one, half of them
constexpr size_t kMostText = 96;        // of the whole line: after that, items are only counted
constexpr size_t kMostBytes = 8;        // shown in hexadecimal
constexpr size_t kMostCharacters = 80;  // of one string
constexpr int kDeepest = 4;

class Writer {
 public:
  explicit Writer(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void write(const Value& v, int depth = 0) {
    if (v.is_sequence()) return sequence(v, depth);
    if (v.is_mapping()) return mapping(v, depth);
    if (v.is_constant()) return put(v.is(Kind::device) ? fmt::format("device {}", v.text()) : std::string(v.text()));
    switch (v.kind()) {
      case Kind::none:
        return put("None");
      case Kind::boolean:
        return put(v.as_boolean() ? "True" : "False");
      case Kind::real:
        return put(real_text(v.as_real()));
      case Kind::complex: {
        const auto [re, im] = v.as_complex();
        return put(fmt::format("({}{}{}j)", real_text(re), std::signbit(im) ? "" : "+", real_text(im)));
      }
      case Kind::big_integer:
        return put(v.text());
      case Kind::string:
        return string(v.text());
      case Kind::bytes:
        return bytes("bytes", v.text());
      case Kind::bytearray:
        return bytes("bytearray", v.text());
      case Kind::numpy_scalar:
        return numpy_scalar(v.node<NumpyScalarNode>());
      case Kind::numpy_array: {
        const auto& array = v.node<NumpyArrayNode>();
        return put(fmt::format("numpy {} {}", array.dtype, dims_text(array.shape)));
      }
      case Kind::tensor: {
        const TensorInfo& info = checkpoint_.tensors[v.as_tensor().index];
        return put(fmt::format("tensor {} {}", dtype_name(info.dtype), dims_text(info.shape)));
      }
      case Kind::storage:
        return put(v.node<StorageNode>().storage_class);
      case Kind::global:
        return put(fmt::format("{}.{}", v.node<GlobalNode>().module, v.node<GlobalNode>().name));
      case Kind::object:
        return put("object of " + v.node<ObjectNode>().class_name());
      default:
        return put(value_to_json(v, JsonForm::shown));  // integers
    }
  }

  std::string text;

 private:
  void put(std::string_view more) { text += more; }

  static std::string real_text(double d) {
    if (std::isnan(d)) return "nan";
    return std::isinf(d) ? (d > 0 ? "inf" : "-inf") : value_to_json(Value::real(d), JsonForm::shown);
  }

  void string(std::string_view s) {
    if (!is_utf8(s)) return put(fmt::format("str[{}]", count_text(s.size())));
    size_t end = std::min(s.size(), kMostCharacters);
    while (end > 0 && end < s.size() && (static_cast<unsigned char>(s[end]) & 0xc0) == 0x80) --end;
    put(value_to_json(Value::string(s.substr(0, end)), JsonForm::shown));
    if (end < s.size()) put(fmt::format(" ... {} more", count_text(s.size() - end, "byte")));
  }

  void bytes(std::string_view type, std::string_view raw) {
    put(fmt::format("{}[{}]", type, raw.size()));
    if (raw.empty() || raw.size() > kMostBytes) return;
    put(" ");
    for (const char c : raw) put(fmt::format("{:02x}", static_cast<unsigned char>(c)));
  }

  void numpy_scalar(const NumpyScalarNode& scalar) {
    const std::optional<DType> dtype = dtype_from_name(scalar.dtype);
    put("numpy " + scalar.dtype);
    if (!dtype || !is_numeric(*dtype) || item_size(*dtype) != scalar.raw.size()) return;
    if (dtype_kind(*dtype) == DTypeKind::complex) return;
    put(fmt::format(" {}", element_value(*dtype, std::as_bytes(std::span(scalar.raw)).data())));
  }

  // Calls item(i) for as many as fit, and counts the rest.
  template <class Item>
  void items(size_t count, int depth, const Item& item) {
    const size_t most = depth >= kDeepest ? 0 : depth > 0 ? kMostItems / 2 : kMostItems;
    size_t i = 0;
    for (; i < count && i < most && text.size() < kMostText; ++i) {
      if (i > 0) put(", ");
      item(i);
    }
    if (i == count) return;
    put(i == 0 ? count_text(count, "item") : fmt::format(", ... {} more", count_text(count - i)));
  }

  void sequence(const Value& v, int depth) {
    const std::vector<Value>& values = v.items();
    const auto all = [&] { items(values.size(), depth, [&](size_t i) { write(values[i], depth + 1); }); };
    switch (v.kind()) {
      case Kind::list:
        put("[");
        all();
        return put("]");
      case Kind::size:
        put("torch.Size([");
        all();
        return put("])");
      case Kind::tuple:
        put("(");
        all();
        return put(values.size() == 1 ? ",)" : ")");
      default:
        put(v.is(Kind::set) ? "set(" : "frozenset(");
        all();
        return put(")");
    }
  }

  void mapping(const Value& v, int depth) {
    const std::vector<Entry>& entries = v.entries();
    put(v.is(Kind::counter)        ? "Counter"
        : v.is(Kind::ordered_dict) ? "OrderedDict"
        : v.is(Kind::default_dict) ? "defaultdict"
                                   : "");
    put("{");
    items(entries.size(), depth, [&](size_t i) {
      write(entries[i].key, depth + 1);
      put(": ");
      write(entries[i].value, depth + 1);
    });
    put("}");
  }

  const Checkpoint& checkpoint_;
};

}  // namespace

std::string value_text(const Value& value, const Checkpoint& checkpoint) {
  Writer writer(checkpoint);
  writer.write(value);
  return std::move(writer.text);
}

}  // namespace fsdpctl
