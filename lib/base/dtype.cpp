#include "lib/base/dtype.h"

namespace fsdpctl {
namespace {

struct Row {
  std::string_view name;
  uint8_t bytes;
  DTypeKind kind;
};

using K = DTypeKind;
constexpr Row kRows[kDTypeCount] = {
    {"float64", 8, K::floating},         {"float32", 4, K::floating},
    {"float16", 2, K::floating},         {"bfloat16", 2, K::floating},
    {"complex128", 16, K::complex},      {"complex64", 8, K::complex},
    {"complex32", 4, K::complex},        {"int64", 8, K::integer},
    {"int32", 4, K::integer},            {"int16", 2, K::integer},
    {"int8", 1, K::integer},             {"uint64", 8, K::integer},
    {"uint32", 4, K::integer},           {"uint16", 2, K::integer},
    {"uint8", 1, K::integer},            {"bool", 1, K::boolean},
    {"float8_e4m3fn", 1, K::floating},   {"float8_e5m2", 1, K::floating},
    {"float8_e4m3fnuz", 1, K::floating}, {"float8_e5m2fnuz", 1, K::floating},
    {"float8_e8m0fnu", 1, K::floating},  {"float4_e2m1fn_x2", 1, K::floating},
    {"bits8", 1, K::bits},               {"bits16", 2, K::bits},
    {"bits1x8", 1, K::bits},             {"bits2x4", 1, K::bits},
    {"bits4x2", 1, K::bits},             {"qint8", 1, K::quantized},
    {"quint8", 1, K::quantized},         {"qint32", 4, K::quantized},
    {"quint4x2", 1, K::quantized},       {"quint2x4", 1, K::quantized},
};

const Row& row(DType dtype) { return kRows[static_cast<int>(dtype)]; }

}  // namespace

std::string_view dtype_name(DType dtype) { return row(dtype).name; }
uint32_t item_size(DType dtype) { return row(dtype).bytes; }
DTypeKind dtype_kind(DType dtype) { return row(dtype).kind; }

uint32_t swap_size(DType dtype) {
  return row(dtype).kind == DTypeKind::complex ? row(dtype).bytes / 2 : row(dtype).bytes;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace fsdpctl
