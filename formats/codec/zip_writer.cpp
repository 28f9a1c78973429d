// The framing that PyTorch 2.13 writes (formats/torch.md, "ZIP"), byte for byte.
#include "formats/codec/zip.h"
#include "formats/codec/little_endian.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kUtf8Flag = 0x0800;
constexpr uint16_t kDescriptorFlag = 0x0008;

bool big_size(const ZipHeader& h) { return h.data_size >= kMax32; }
bool big_offset(const ZipHeader& h) { return h.header_offset >= kMax32; }
// A zip64 block in the local header makes its descriptor the long one, whatever the size.
bool zip64(const ZipHeader& h) { return big_size(h) || big_offset(h); }
uint16_t flags(const ZipHeader& h) { return h.data_size > 0 ? kUtf8Flag | kDescriptorFlag : kUtf8Flag; }
uint64_t zip64_size(const ZipHeader& h) { return zip64(h) ? 4 + (big_size(h) ? 16 : 0) + (big_offset(h) ? 8 : 0) : 0; }

// `compressed`: what stands for the stored size, which local headers leave 0.
void write_zip64(const ZipHeader& h, uint64_t compressed, std::string& out) {
  if (!zip64(h)) return;
  put_u16(out, 1);
  put_u16(out, static_cast<uint16_t>(zip64_size(h) - 4));
  if (big_size(h)) {
    put_u64(out, h.data_size);
    put_u64(out, compressed);
  }
  if (big_offset(h)) put_u64(out, h.header_offset);
}

uint32_t clamp32(uint64_t v) { return static_cast<uint32_t>(v < kMax32 ? v : kMax32); }
uint16_t clamp16(uint64_t v) { return static_cast<uint16_t>(v < 0xFFFF ? v : 0xFFFF); }

}  // namespace

ZipHeader plan_zip_member(uint64_t header_offset, size_t full_name_size, uint64_t data_size) {
  ZipHeader h;
  h.header_offset = header_offset;
  h.data_size = data_size;
  const uint64_t unpadded = header_offset + kZipLocalHeader + full_name_size + zip64_size(h) + 4;
  h.data_offset = (unpadded + kAlignment - 1) / kAlignment * kAlignment;
  h.end_offset = h.data_offset + data_size + (data_size == 0 ? 0 : zip64(h) ? 24 : 16);
  return h;
}

void write_zip_local(const ZipHeader& h, std::string_view full_name, std::string& out) {
  const uint64_t extra = h.data_offset - h.header_offset - kZipLocalHeader - full_name.size();
  const uint64_t padding = extra - zip64_size(h) - 4;
  out.append("PK\3\4\0\0", 6);
  put_u16(out, flags(h));
  out.append(18, '\0');   // method, time, date; CRC and sizes follow the data
  put_u16(out, static_cast<uint16_t>(full_name.size()));
  put_u16(out, static_cast<uint16_t>(extra));
  out += full_name;
  write_zip64(h, 0, out);
  out += "FB";
  put_u16(out, static_cast<uint16_t>(padding));
  out.append(padding, 'Z');
}

void write_zip_descriptor(const ZipHeader& h, uint32_t crc32, std::string& out) {
  if (h.data_size == 0) return;
  out += "PK\7\10";
  put_u32(out, crc32);
  for (int i = 0; i < 2; ++i) {   // stored and original size
    if (zip64(h)) put_u64(out, h.data_size);
    else put_u32(out, static_cast<uint32_t>(h.data_size));
  }
}

uint64_t zip_central_size(const ZipHeader& h, size_t full_name_size) { return 46 + full_name_size + zip64_size(h); }

void write_zip_central(const ZipHeader& h, std::string_view full_name, uint32_t crc32, std::string& out) {
  out.append("PK\1\2\0\0\0\0", 8);
  put_u16(out, flags(h));
  out.append(6, '\0');    // method, time, date
  put_u32(out, crc32);
  put_u32(out, clamp32(h.data_size));
  put_u32(out, clamp32(h.data_size));
  put_u16(out, static_cast<uint16_t>(full_name.size()));
  put_u16(out, static_cast<uint16_t>(zip64_size(h)));
  out.append(10, '\0');   // comment, disk, attributes
  put_u32(out, clamp32(h.header_offset));
  out += full_name;
  write_zip64(h, h.data_size, out);
}

void write_zip_end(uint64_t central_offset, uint64_t central_size, uint64_t members, std::string& out) {
  out += "PK\6\6";
  put_u64(out, 44);       // bytes that follow in this record
  put_u16(out, 0x031E);
  put_u16(out, 0x002D);
  put_u64(out, 0);        // disks
  put_u64(out, members);
  put_u64(out, members);
  put_u64(out, central_size);
  put_u64(out, central_offset);
  out += "PK\6\7";
  put_u32(out, 0);
  put_u64(out, central_offset + central_size);
  put_u32(out, 1);        // PyTorch's reader insists on one disk
  out += "PK\5\6";
  put_u32(out, 0);
  put_u16(out, clamp16(members));
  put_u16(out, clamp16(members));
  put_u32(out, clamp32(central_size));
  put_u32(out, clamp32(central_offset));
  put_u16(out, 0);
}

}  // namespace fsdpctl
