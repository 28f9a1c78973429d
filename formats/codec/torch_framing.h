// What PyTorch 2.13 puts around storages, in its order: data.pkl, three small members, the storages, two more small ones,
// the directory. Shared by whole archives and by single-tensor items.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/codec/zip.h"

namespace fsdpctl {

struct SmallMember {
  std::string_view name, content;
};
inline constexpr SmallMember kBeforeStorages[] = {{".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}};
inline constexpr std::string_view kVersionName = "version", kVersion = "3\n";
inline constexpr std::string_view kIdName = ".data/serialization_id";
inline constexpr size_t kIdSize = 40;

// 20 digits that depend on the members' names, 20 on their CRCs. PyTorch's own ids depend on hash seeds of the standard
// library; readers only log them.
class SerializationId {
 public:
  void name(std::string_view full_name);
  void crc(uint32_t crc32);
  std::string text() const;

 private:
  uint64_t names_ = 0xCBF29CE484222325u, crcs_ = 0xCBF29CE484222325u;   // FNV-1a
};

// One member, whole: header, content, descriptor. Returns where the next one begins.
uint64_t write_small_member(uint64_t header_offset, std::string_view full_name, std::string_view content, std::string& out);

}  // namespace fsdpctl
