#include "formats/codec/little_endian.h"
#include "formats/codec/torch_framing.h"

#include <fmt/format.h>

namespace fsdpctl {
namespace {

constexpr uint64_t kPrime = 0x100000001B3u;

}  // namespace

void SerializationId::name(std::string_view full_name) {
  for (const char c : full_name) names_ = (names_ ^ static_cast<uint8_t>(c)) * kPrime;
  names_ = (names_ ^ '/') * kPrime;
}

void SerializationId::crc(uint32_t crc32) {
  for (int shift = 0; shift < 32; shift += 8) crcs_ = (crcs_ ^ (crc32 >> shift & 0xFF)) * kPrime;
}

std::string SerializationId::text() const { return fmt::format("{:020}{:020}", names_, crcs_); }

uint64_t write_small_member(uint64_t header_offset, std::string_view full_name, std::string_view content, std::string& out) {
  const ZipHeader h = plan_zip_member(header_offset, full_name.size(), content.size());
  write_zip_local(h, full_name, out);
  out += content;
  write_zip_descriptor(h, crc32(byte_view(content)), out);
  return h.end_offset;
}

}  // namespace fsdpctl
