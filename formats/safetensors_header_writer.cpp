// The writing half of safetensors_header.h, and the names of dtypes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "formats/safetensors_header.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kLengthField = 8;
constexpr uint64_t kDataAlignment = 64;

struct Tag {
  std::string_view text;
  DType dtype;
};
// In the order of the reference implementation, which sorts data from the last to the first.
constexpr std::array<Tag, 20> kTags{{
    {"BOOL", DType::boolean}, {"F4", DType::float4_e2m1fn_x2}, {"U8", DType::uint8}, {"I8", DType::int8},
    {"F8_E5M2", DType::float8_e5m2}, {"F8_E4M3", DType::float8_e4m3fn}, {"F8_E8M0", DType::float8_e8m0fnu},
    {"F8_E4M3FNUZ", DType::float8_e4m3fnuz}, {"F8_E5M2FNUZ", DType::float8_e5m2fnuz},
    {"I16", DType::int16}, {"U16", DType::uint16}, {"F16", DType::float16}, {"BF16", DType::bfloat16},
    {"I32", DType::int32}, {"U32", DType::uint32}, {"F32", DType::float32}, {"C64", DType::complex64},
    {"F64", DType::float64}, {"I64", DType::int64}, {"U64", DType::uint64},
}};

}  // namespace

void write_safetensors_header(const SafetensorsMetadata& metadata, std::span<const SafetensorsEntry> entries,
                              std::string& out) {
  const size_t start = out.size();
  out.append(kLengthField, '\0');
  out += '{';
  if (!metadata.empty()) {
    out += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      append_json_string(key, out);
      out += ':';
      append_json_string(value, out);
      out += ',';
    }
    out.back() = '}';
    out += ',';
  }
  for (const SafetensorsEntry& e : entries) {
    append_json_string(e.name, out);
    fmt::format_to(std::back_inserter(out), ":{{\"dtype\":\"{}\",\"shape\":[", safetensors_dtype(e.dtype));
    for (size_t d = 0; d < e.shape.size(); ++d) {
      const bool pairs = e.dtype == DType::float4_e2m1fn_x2 && d + 1 == e.shape.size();
      if (d > 0) out += ',';
      fmt::format_to(std::back_inserter(out), "{}", pairs ? 2 * e.shape[d] : e.shape[d]);
    }
    fmt::format_to(std::back_inserter(out), "],\"data_offsets\":[{},{}]}},", e.begin, e.begin + e.length);
  }
  if (out.back() == ',') out.pop_back();
  out += '}';
  const size_t ragged = (out.size() - start) % kDataAlignment;
  if (ragged != 0) out.append(kDataAlignment - ragged, ' ');
  const uint64_t length = out.size() - start - kLengthField;
  for (size_t i = 0; i < kLengthField; ++i) out[start + i] = static_cast<char>(length >> (8 * i));
}

std::optional<DType> dtype_of_safetensors(std::string_view tag) {
  const auto found = std::find_if(kTags.begin(), kTags.end(), [&](const Tag& t) { return t.text == tag; });
  if (found == kTags.end()) return std::nullopt;
  return found->dtype;
}

std::string_view safetensors_dtype(DType dtype) {
  const int order = safetensors_dtype_order(dtype);
  return order < 0 ? std::string_view() : kTags[static_cast<size_t>(order)].text;
}

int safetensors_dtype_order(DType dtype) {
  const auto tag = std::find_if(kTags.begin(), kTags.end(), [&](const Tag& t) { return t.dtype == dtype; });
  return tag == kTags.end() ? -1 : static_cast<int>(tag - kTags.begin());
}

}  // namespace fsdpctl
