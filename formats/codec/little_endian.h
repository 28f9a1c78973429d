// Byte buffers: views of text as bytes, and little-endian integers as ZIP, pickle and safetensors store them. Callers
// check bounds.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace fsdpctl {

static_assert(std::endian::native == std::endian::little, "a big-endian host needs byte swaps here and in the engine");

inline std::span<const std::byte> byte_view(std::string_view text) { return std::as_bytes(std::span(text)); }

template <class Integer>
Integer get_le(const std::byte* at) {
  Integer v;
  std::memcpy(&v, at, sizeof v);
  return v;
}
inline uint16_t get_u16(const std::byte* at) { return get_le<uint16_t>(at); }
inline uint32_t get_u32(const std::byte* at) { return get_le<uint32_t>(at); }
inline uint64_t get_u64(const std::byte* at) { return get_le<uint64_t>(at); }

template <class Integer>
void put_le(std::string& out, Integer v) {
  char bytes[sizeof v];
  std::memcpy(bytes, &v, sizeof v);
  out.append(bytes, sizeof v);
}
inline void put_u16(std::string& out, uint16_t v) { put_le(out, v); }
inline void put_u32(std::string& out, uint32_t v) { put_le(out, v); }
inline void put_u64(std::string& out, uint64_t v) { put_le(out, v); }

}  // namespace fsdpctl
