// ZIP as torch.save uses it: the directory of an archive, and the framing that PyTorch writes.
//
// An archive may be a slice of a bigger file (DCP); offsets are relative to the slice. Refused: duplicate
// or escaping member names, overlapping members, encryption, several disks, more than one prefix. Byte layout:
// shared notes in formats/torch.md. Pure functions on buffers, so that they can be fuzzed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/checksum.h"
#include "lib/base/finding.h"

namespace fsdpctl {

struct ZipMember {
  std::string name;             // without the archive prefix: "data/0"
  uint64_t data_offset = 0;     // of the first stored byte, from the start of the archive
  uint64_t stored_size = 0;     // bytes in the archive
  uint64_t size = 0;            // bytes after decompression
  uint32_t crc32 = 0;           // of the decompressed bytes; 0 with size > 0: not computed
  uint16_t method = 0;          // 0 stored, 8 deflate
};

struct ZipArchive {
  std::string prefix;           // "archive"
  std::vector<ZipMember> members;   // in central-directory order
  const ZipMember* find(std::string_view name) const;   // logarithmic
  std::vector<uint32_t> by_name;
};

// Reads `out.size()` bytes at `offset` of the archive.
using ZipRead = std::function<void(uint64_t offset, std::span<std::byte> out)>;
// Error(damaged) or Error(unsupported); `name` is the file, `base` the archive's offset in it, for messages.
ZipArchive read_zip(const ZipRead& read, uint64_t length, const std::string& name, uint64_t base);

// ---- writing: members are stored, data aligned to 64 bytes from the start of the archive
struct ZipHeader {
  uint64_t header_offset = 0;
  uint64_t data_offset = 0;
  uint64_t data_size = 0;
  uint64_t end_offset = 0;      // after the data descriptor: where the next member begins
};
ZipHeader plan_zip_member(uint64_t header_offset, std::string_view full_name, uint64_t data_size);
void write_zip_local(const ZipHeader& h, std::string_view full_name, std::string& out);      // header up to the data
void write_zip_descriptor(const ZipHeader& h, uint32_t crc32, std::string& out);              // nothing when empty
void write_zip_central(const ZipHeader& h, std::string_view full_name, uint32_t crc32, std::string& out);
uint64_t zip_central_size(const ZipHeader& h, std::string_view full_name);
inline constexpr uint64_t kZipEndSize = 98;   // zip64 end record, locator, end record
void write_zip_end(uint64_t central_offset, uint64_t central_size, uint64_t members, std::string& out);

}  // namespace fsdpctl
