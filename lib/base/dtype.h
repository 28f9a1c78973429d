// Element types of tensors: PyTorch's dtypes, by PyTorch's names.
//
// Every format keeps its own spelling (storage class, safetensors tag, HDF5 type) in its own file;
// here is only what all of them share. Source: torch 2.13 `torch/storage.py`, c10/core/ScalarType.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdpctl {

// Values are in memory only (never on disk); order is free to change.
enum class DType : uint8_t {
  float64, float32, float16, bfloat16,
  complex128, complex64, complex32,
  int64, int32, int16, int8, uint64, uint32, uint16, uint8, boolean,
  float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz, float8_e8m0fnu,
  float4_e2m1fn_x2,                                 // two values per byte; shapes count bytes
  bits8, bits16, bits1x8, bits2x4, bits4x2,
  qint8, quint8, qint32, quint4x2, quint2x4,        // only inside inert quantised tensors
};
inline constexpr int kDTypeCount = static_cast<int>(DType::quint2x4) + 1;

enum class DTypeKind : uint8_t { floating, complex, integer, boolean, bits, quantized };

std::string_view dtype_name(DType dtype);                        // "float32", "bool"
std::optional<DType> dtype_from_name(std::string_view name);     // without "torch."
uint32_t item_size(DType dtype);                                 // bytes, 1..16
DTypeKind dtype_kind(DType dtype);
// Bytes that a byte swap reverses together: item_size, or half of it for complex types.
uint32_t swap_size(DType dtype);

}  // namespace fsdpctl
