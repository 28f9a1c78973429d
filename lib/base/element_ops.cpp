#include "lib/base/element_ops.h"

#include <cstdint>
#include <cstring>

namespace fsdpctl {
namespace {

// Replaces every kStep-th T, from the first on, by change(T).
template <class T, size_t kStep = 1, class Change>
void for_all(std::span<std::byte> bytes, Change change) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += kStep * sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    value = change(value);
    std::memcpy(bytes.data() + at, &value, sizeof value);
  }
}

template <class T, size_t kStep = 1>
void flip_signs(std::span<std::byte> bytes) {
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  for_all<T, kStep>(bytes, [](T v) { return static_cast<T>(v ^ kSign); });
}

template <class T>
void negate_integers(std::span<std::byte> bytes) {
  for_all<T>(bytes, [](T v) { return static_cast<T>(T{0} - v); });
}

template <class T>
void negate_as(DTypeKind kind, std::span<std::byte> bytes) {
  return kind == DTypeKind::integer ? negate_integers<T>(bytes) : flip_signs<T>(bytes);
}

}  // namespace

void swap_bytes(DType dtype, std::span<std::byte> elements) {
  switch (swap_size(dtype)) {
    case 2: return for_all<uint16_t>(elements, [](uint16_t v) { return __builtin_bswap16(v); });
    case 4: return for_all<uint32_t>(elements, [](uint32_t v) { return __builtin_bswap32(v); });
    case 8: return for_all<uint64_t>(elements, [](uint64_t v) { return __builtin_bswap64(v); });
    default: return;
  }
}

void negate(DType dtype, std::span<std::byte> elements) {
  const DTypeKind kind = dtype_kind(dtype);
  switch (swap_size(dtype)) {
    case 1: return negate_as<uint8_t>(kind, elements);
    case 2: return negate_as<uint16_t>(kind, elements);
    case 4: return negate_as<uint32_t>(kind, elements);
    default: return negate_as<uint64_t>(kind, elements);
  }
}

void conjugate(DType dtype, std::span<std::byte> elements) {
  if (dtype_kind(dtype) != DTypeKind::complex || elements.empty()) return;
  const size_t half = swap_size(dtype);
  const std::span<std::byte> imaginary = elements.subspan(half);
  switch (half) {
    case 2: return flip_signs<uint16_t, 2>(imaginary);
    case 4: return flip_signs<uint32_t, 2>(imaginary);
    default: return flip_signs<uint64_t, 2>(imaginary);
  }
}

}  // namespace fsdpctl
