// ZIP as torch.save uses it: the directory of an archive, and the framing that PyTorch writes.
//
// An archive may be a slice of a bigger file (DCP); offsets are relative to the slice. Refused: duplicate
// or escaping member names, overlapping members, encryption, several disks, more than one prefix. Byte layout:
// formats/torch.md. Pure functions on buffers, so that they can be fuzzed. Thread-safe.
//
// Damage is Error(damaged), what must not be read Error(unsupported); `where` is the file, with offsets from its
// start (ZipName::base is the archive's offset in the file).
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
  uint64_t header_offset = 0;   // of the local header, from the start of the archive
  uint64_t data_offset = 0;     // of the first stored byte, ditto
  uint64_t stored_size = 0;     // bytes in the archive
  uint64_t size = 0;            // bytes after decompression
  uint32_t crc32 = 0;           // of the decompressed bytes; 0 with size > 0: not computed
  uint16_t method = 0;          // kZipStored or kZipDeflated
};
inline constexpr uint16_t kZipStored = 0;
inline constexpr uint16_t kZipDeflated = 8;

struct ZipArchive {
  std::string prefix;                // "archive"
  std::vector<ZipMember> members;    // in central-directory order, without directories
  const ZipMember* find(std::string_view name) const;   // logarithmic; null if absent
  std::vector<uint32_t> by_name;
};

// Reads `out.size()` bytes at `offset` of the archive.
using ZipRead = std::function<void(uint64_t offset, std::span<std::byte> out)>;
ZipArchive read_zip(const ZipRead& read, uint64_t length, const std::string& name, uint64_t base);

// Bytes of a stored or deflated member, checked against its CRC. Error(unsupported) above `limit` bytes or where a
// small member claims to grow out of proportion.
std::string read_zip_member(const ZipRead& read, const ZipMember& member, uint64_t limit, const std::string& name,
                            uint64_t base);

// Inflates a deflated member in blocks. Error(damaged) unless exactly member.size bytes come out and their CRC is the
// recorded one; never produces more than that.
void inflate_zip_member(const ZipRead& read, const ZipMember& member, const std::string& name, uint64_t base,
                        const std::function<void(uint64_t offset, Bytes block)>& out);

// ---- the steps of read_zip, for readers that hold an archive's ends in memory and must be fast

struct ZipEnd {
  uint64_t directory_offset = 0;
  uint64_t directory_size = 0;
  uint64_t entries = 0;
};
// Ends of archives are looked for in the last kZipTail bytes (a comment may be 65,535 bytes long).
inline constexpr uint64_t kZipTail = 65535 + 98;
// `tail`: the last bytes of the archive, min(length, kZipTail) or, if the end is expected without comment, fewer.
ZipEnd find_zip_end(Bytes tail, uint64_t length, const std::string& name, uint64_t base);

struct ZipEntry {
  std::string_view full_name;   // with prefix; a view into the directory
  uint64_t header_offset = 0;
  uint64_t stored_size = 0;
  uint64_t size = 0;
  uint32_t crc32 = 0;
  uint16_t method = 0;
  uint16_t flags = 0;
};
// Walks a central directory; checks each entry by itself.
class ZipDirectory {
 public:
  ZipDirectory(Bytes directory, const ZipEnd& end, const std::string& name, uint64_t base);
  bool next(ZipEntry& entry);   // false after the last one, which must end the directory

 private:
  Bytes rest_;
  const ZipEnd& end_;
  uint64_t left_;
  const std::string& name_;
  uint64_t base_;
};

inline constexpr uint64_t kZipLocalHeader = 30;
// Where the data of `entry` begins, from its local header's first bytes (kZipLocalHeader + full_name.size() of them).
uint64_t zip_data_offset(Bytes local_header, const ZipEntry& entry, const ZipEnd& end, const std::string& name,
                         uint64_t base);
// Whether a descriptor with a checksum follows the member's data, and that it repeats the directory's: Error(damaged) where not.
// `head` are its first kZipDescriptorHead bytes, `at` is where they lie in the file.
inline constexpr uint64_t kZipDescriptorHead = 8;
bool has_zip_descriptor(Bytes local_header, const ZipEntry& entry);
void check_zip_descriptor(Bytes head, const ZipEntry& entry, uint64_t at, const std::string& name);

// ---- writing: members are stored, data aligned to 64 bytes from the start of the archive

struct ZipHeader {
  uint64_t header_offset = 0;
  uint64_t data_offset = 0;
  uint64_t data_size = 0;
  uint64_t end_offset = 0;      // after the data descriptor: where the next member begins
};
ZipHeader plan_zip_member(uint64_t header_offset, size_t full_name_size, uint64_t data_size);
void write_zip_local(const ZipHeader& h, std::string_view full_name, std::string& out);      // header up to the data
void write_zip_descriptor(const ZipHeader& h, uint32_t crc32, std::string& out);              // nothing when empty
void write_zip_central(const ZipHeader& h, std::string_view full_name, uint32_t crc32, std::string& out);
uint64_t zip_central_size(const ZipHeader& h, size_t full_name_size);
inline constexpr uint64_t kZipEndSize = 98;   // zip64 end record, locator, end record
void write_zip_end(uint64_t central_offset, uint64_t central_size, uint64_t members, std::string& out);

}  // namespace fsdpctl
