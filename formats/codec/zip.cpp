#include "formats/codec/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "formats/codec/little_endian.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kEnd = 22, kLocator = 20, kEnd64 = 56, kCentral = 46;
constexpr uint32_t kEndSignature = 0x06054B50, kLocatorSignature = 0x07064B50, kEnd64Signature = 0x06064B50;
constexpr uint32_t kCentralSignature = 0x02014B50, kLocalSignature = 0x04034B50;
constexpr uint64_t kMaxDirectory = 512 << 20;   // bytes: some eight million members
constexpr uint32_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kSealedFlags = 0x0001 | 0x0040 | 0x2000;   // encrypted, strongly encrypted, masked headers

Error damaged(std::string what, const std::string& name, uint64_t begin, uint64_t end) {
  return Error(Exit::damaged, std::move(what)).at(name).range(begin, end);
}
Error unsafe(std::string what, const std::string& name, std::string_view found) {
  return Error(Exit::unsupported, std::move(what)).at(name).found_only(std::string(found));
}

// Member names never touch the file system here, but a file that tries to escape is not what PyTorch wrote.
bool escapes(std::string_view full_name) {
  if (full_name.empty() || full_name[0] == '/' || full_name[0] == '\\') return true;
  if (full_name.find("..") == std::string_view::npos && full_name.find('\0') == std::string_view::npos) return false;
  size_t dots = 0, length = 0;   // of the path element so far
  for (const char c : full_name) {
    if (c == '\0') return true;
    if (c == '/' || c == '\\') {
      if (length == 2 && dots == 2) return true;
      dots = length = 0;
    } else {
      dots += c == '.';
      ++length;
    }
  }
  return length == 2 && dots == 2;
}

// Replaces the clamped fields of a central entry by those of its zip64 block.
bool apply_zip64(Bytes extra, ZipEntry& entry, uint32_t& disk) {
  const bool size = entry.size == kMax32, stored = entry.stored_size == kMax32;
  const bool offset = entry.header_offset == kMax32, far = disk == 0xFFFF;
  if (!size && !stored && !offset && !far) return true;
  while (extra.size() >= 4) {
    const uint16_t id = get_u16(extra.data()), length = get_u16(extra.data() + 2);
    if (length > extra.size() - 4) return false;
    if (id != 1) {
      extra = extra.subspan(4 + length);
      continue;
    }
    const std::byte* at = extra.data() + 4;
    if (length < 8 * (size + stored + offset) + 4 * far) return false;
    auto take = [&at](bool clamped, uint64_t& field) {
      if (clamped) field = get_u64(at), at += 8;
    };
    take(size, entry.size), take(stored, entry.stored_size), take(offset, entry.header_offset);
    if (far) disk = get_u32(at);
    return true;
  }
  return true;   // no block: the fields really are 0xFFFFFFFF
}

}  // namespace

ZipEnd find_zip_end(Bytes tail, uint64_t length, const std::string& name, uint64_t base) {
  const uint64_t tail_offset = length - tail.size();
  for (uint64_t at = tail.size() >= kEnd ? tail.size() - kEnd + 1 : 0; at-- > 0;) {
    const std::byte* record = tail.data() + at;
    if (get_u32(record) != kEndSignature || get_u16(record + 20) != tail.size() - at - kEnd) continue;

    uint64_t disks = get_u32(record + 4);   // this disk, disk of the directory
    ZipEnd end{get_u32(record + 16), get_u32(record + 12), get_u16(record + 10)};
    uint64_t limit = at;
    if (at >= kLocator && get_u32(record - kLocator) == kLocatorSignature) {
      const std::byte* locator = record - kLocator;
      const uint64_t offset64 = get_u64(locator + 8), locator_offset = tail_offset + at - kLocator;
      if (offset64 < tail_offset || offset64 > locator_offset || locator_offset - offset64 < kEnd64) {
        throw damaged("zip64 end record is not where the archive says", name, base + tail_offset, base + length);
      }
      const std::byte* end64 = tail.data() + (offset64 - tail_offset);
      if (get_u32(end64) != kEnd64Signature) {
        throw damaged("zip64 end record has a wrong signature", name, base + offset64, base + offset64 + kEnd64);
      }
      const ZipEnd short_end = end;
      end = {get_u64(end64 + 48), get_u64(end64 + 40), get_u64(end64 + 32)};
      disks = get_u64(end64 + 16) | (get_u32(locator + 16) > 1);
      limit = offset64 - tail_offset;
      auto differs = [](uint64_t shown, uint64_t clamp, uint64_t real) { return shown != clamp && shown != real; };
      if (differs(short_end.directory_offset, kMax32, end.directory_offset) ||
          differs(short_end.directory_size, kMax32, end.directory_size) ||
          differs(short_end.entries, 0xFFFF, end.entries)) {
        throw damaged("the two end records of the archive disagree", name, base + offset64, base + length);
      }
    }
    if (end.directory_size > kMaxDirectory) throw unsafe("archive directory is too big", name, fmt::format("{} bytes", end.directory_size));
    if (disks != 0) throw unsafe("archive is split over several disks", name, "");
    const uint64_t available = tail_offset + limit;
    if (end.directory_offset > available || end.directory_size > available - end.directory_offset) {
      throw damaged("archive directory lies outside the archive", name, base + tail_offset + at, base + length);
    }
    if (end.entries > end.directory_size / kCentral) {
      throw damaged("archive directory is too short for its entries", name, base + end.directory_offset,
                    base + end.directory_offset + end.directory_size);
    }
    return end;
  }
  throw damaged("archive has no end record: cut short, or not a ZIP file", name, base, base + length);
}

ZipDirectory::ZipDirectory(Bytes directory, const ZipEnd& end, const std::string& name, uint64_t base)
    : rest_(directory), end_(end), left_(end.entries), name_(name), base_(base) {}

bool ZipDirectory::next(ZipEntry& entry) {
  const uint64_t at = base_ + end_.directory_offset + end_.directory_size - rest_.size();
  const uint64_t directory_end = at + rest_.size();
  if (left_ == 0) {
    if (!rest_.empty()) throw damaged("archive directory has more than its entries", name_, at, directory_end);
    return false;
  }
  --left_;
  if (rest_.size() < kCentral || get_u32(rest_.data()) != kCentralSignature) {
    throw damaged("archive directory is damaged", name_, at, directory_end);
  }
  const std::byte* p = rest_.data();
  const uint64_t name_size = get_u16(p + 28), extra_size = get_u16(p + 30), comment_size = get_u16(p + 32);
  if (name_size + extra_size + comment_size > rest_.size() - kCentral) {
    throw damaged("archive directory is damaged", name_, at, directory_end);
  }
  uint32_t disk = get_u16(p + 34);
  entry.flags = get_u16(p + 8);
  entry.method = get_u16(p + 10);
  entry.crc32 = get_u32(p + 16);
  entry.stored_size = get_u32(p + 20);
  entry.size = get_u32(p + 24);
  entry.header_offset = get_u32(p + 42);
  entry.full_name = {reinterpret_cast<const char*>(p) + kCentral, name_size};
  if (!apply_zip64(rest_.subspan(kCentral + name_size, extra_size), entry, disk)) {
    throw damaged("zip64 sizes of an archive member are cut short", name_, at, directory_end);
  }
  rest_ = rest_.subspan(kCentral + name_size + extra_size + comment_size);

  if (entry.flags & kSealedFlags) throw unsafe("archive member is encrypted", name_, entry.full_name);
  if (disk != 0) throw unsafe("archive is split over several disks", name_, entry.full_name);
  if (entry.method != kZipStored && entry.method != kZipDeflated) {
    throw unsafe("archive member is compressed in an unknown way", name_,
                 fmt::format("method {} of {}", entry.method, entry.full_name));
  }
  if (escapes(entry.full_name)) throw unsafe("archive member has a name that leaves the archive", name_, entry.full_name);
  const uint64_t limit = end_.directory_offset;
  if (entry.header_offset > limit || limit - entry.header_offset < kZipLocalHeader + name_size ||
      entry.stored_size > limit - entry.header_offset - kZipLocalHeader - name_size) {
    throw damaged("archive member lies outside the archive", name_, at, at + kCentral)
        .found_only(fmt::format("{} at {}, {} bytes", entry.full_name, entry.header_offset, entry.stored_size));
  }
  if (entry.method == kZipStored && entry.stored_size != entry.size) {
    throw damaged("stored archive member has two sizes", name_, at, at + kCentral)
        .found_only(fmt::format("{}: {} and {}", entry.full_name, entry.stored_size, entry.size));
  }
  return true;
}

uint64_t zip_data_offset(Bytes local_header, const ZipEntry& entry, const ZipEnd& end, const std::string& name,
                         uint64_t base) {
  const std::byte* p = local_header.data();
  const uint64_t begin = base + entry.header_offset;
  const auto wrong = [&](const char* what) {
    return damaged(what, name, begin, begin + kZipLocalHeader + entry.full_name.size())
        .found_only(std::string(entry.full_name));
  };
  if (get_u32(p) != kLocalSignature) throw wrong("archive member has no header where the directory says");
  const uint64_t name_size = get_u16(p + 26), extra_size = get_u16(p + 28);
  const std::string_view local_name(reinterpret_cast<const char*>(p) + kZipLocalHeader, entry.full_name.size());
  if (name_size != entry.full_name.size() || local_name != entry.full_name) {
    throw wrong("archive member has another name in its header than in the directory");
  }
  const uint16_t flags = get_u16(p + 6);
  if (flags & kSealedFlags) throw unsafe("archive member is encrypted", name, entry.full_name);
  if (get_u16(p + 8) != entry.method) throw wrong("archive member is compressed differently in header and directory");
  if (!(flags & 0x0008)) {   // sizes are here and not in a descriptor
    const uint32_t stored = get_u32(p + 18), size = get_u32(p + 22);
    if ((stored != kMax32 && stored != entry.stored_size) || (size != kMax32 && size != entry.size)) {
      throw wrong("archive member has another size in its header than in the directory");
    }
  }
  const uint64_t data = entry.header_offset + kZipLocalHeader + name_size + extra_size;
  if (data > end.directory_offset || entry.stored_size > end.directory_offset - data) {
    throw wrong("archive member lies outside the archive");
  }
  return data;
}

bool has_zip_descriptor(Bytes local_header, const ZipEntry& entry) {
  return (get_u16(local_header.data() + 6) & 0x0008) != 0 && entry.stored_size > 0 && entry.crc32 != 0;
}

void check_zip_descriptor(Bytes head, const ZipEntry& entry, uint64_t at, const std::string& name) {
  constexpr uint32_t kSignature = 0x08074B50;   // writers may leave it out
  const uint32_t first = get_u32(head.data()), second = get_u32(head.data() + 4);
  if (first == entry.crc32 || (first == kSignature && second == entry.crc32)) return;
  throw damaged("archive member has another checksum in its descriptor than in the directory", name, at, at + kZipDescriptorHead)
      .found_only(std::string(entry.full_name));
}

namespace {

// Local headers in file order. Dense ones (small tensors) come in blocks, the others one by one.
class HeaderReader {
 public:
  HeaderReader(const ZipRead& read, uint64_t length) : read_(read), length_(length) {}

  Bytes at(uint64_t offset, uint64_t size, uint64_t next_offset) {
    if (offset < begin_ || offset + size > begin_ + block_.size()) {
      const bool dense = next_offset > offset && next_offset - offset <= kDense;
      block_.resize(std::max(size, dense ? std::min(kBlock, length_ - offset) : 0));
      begin_ = offset;
      read_(offset, block_);
    }
    return Bytes(block_).subspan(offset - begin_, size);
  }

 private:
  static constexpr uint64_t kDense = 8 << 10, kBlock = 64 << 10;
  const ZipRead& read_;
  uint64_t length_;
  uint64_t begin_ = 0;
  std::vector<std::byte> block_;
};

// Fills data offsets, and checks that no two members share bytes.
void locate_members(const ZipRead& read, uint64_t length, const ZipEnd& end, ZipArchive& archive,
                    const std::string& name, uint64_t base) {
  auto& members = archive.members;
  std::vector<uint32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0);
  const auto earlier = [&](uint32_t a, uint32_t b) { return members[a].header_offset < members[b].header_offset; };
  if (!std::is_sorted(order.begin(), order.end(), earlier)) std::sort(order.begin(), order.end(), earlier);

  HeaderReader headers(read, length);
  std::string full_name;
  uint64_t free_from = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    ZipMember& m = members[order[i]];
    full_name.assign(archive.prefix).append("/").append(m.name);
    if (m.header_offset < free_from) {
      throw Error(Exit::damaged, "archive members overlap")
          .at(name).range(base + m.header_offset, base + free_from).found_only(full_name);
    }
    const uint64_t next = i + 1 < order.size() ? members[order[i + 1]].header_offset : end.directory_offset;
    const ZipEntry entry{full_name, m.header_offset, m.stored_size, m.size, m.crc32, m.method, 0};
    const Bytes header = headers.at(m.header_offset, kZipLocalHeader + full_name.size(), next);
    const bool described = has_zip_descriptor(header, entry);
    m.data_offset = zip_data_offset(header, entry, end, name, base);
    free_from = m.data_offset + m.stored_size;
    if (described && free_from + kZipDescriptorHead <= end.directory_offset) {
      check_zip_descriptor(headers.at(free_from, kZipDescriptorHead, next), entry, base + free_from, name);
    }
  }
}

void sort_names(ZipArchive& archive, const std::string& name) {
  auto& members = archive.members;
  archive.by_name.resize(members.size());
  std::iota(archive.by_name.begin(), archive.by_name.end(), 0);
  std::sort(archive.by_name.begin(), archive.by_name.end(),
            [&](uint32_t a, uint32_t b) { return members[a].name < members[b].name; });
  for (size_t i = 1; i < members.size(); ++i) {
    const std::string& later = members[archive.by_name[i]].name;
    if (members[archive.by_name[i - 1]].name == later) throw unsafe("duplicate archive member", name, later);
  }
}

}  // namespace

ZipArchive read_zip(const ZipRead& read, uint64_t length, const std::string& name, uint64_t base) {
  std::vector<std::byte> tail(std::min(length, kZipTail));
  read(length - tail.size(), tail);
  const ZipEnd end = find_zip_end(tail, length, name, base);

  std::vector<std::byte> far_directory;
  const uint64_t tail_offset = length - tail.size();
  if (end.directory_offset < tail_offset) {
    far_directory.resize(end.directory_size);
    read(end.directory_offset, far_directory);
  }
  const Bytes directory = end.directory_offset < tail_offset
                              ? Bytes(far_directory)
                              : Bytes(tail).subspan(end.directory_offset - tail_offset, end.directory_size);

  ZipArchive archive;
  archive.members.reserve(end.entries);
  ZipDirectory entries(directory, end, name, base);
  for (ZipEntry entry; entries.next(entry);) {
    const size_t slash = entry.full_name.find('/');
    const std::string_view prefix = entry.full_name.substr(0, slash);
    if (archive.prefix.empty()) archive.prefix = prefix;
    if (slash == std::string_view::npos || prefix != archive.prefix) {
      throw Error(Exit::damaged, "archive member lies outside the archive's one folder")
          .at(name).saw(archive.prefix + "/...", std::string(entry.full_name));
    }
    if (entry.full_name.back() == '/' && entry.size == 0) continue;   // a folder, which zip tools like to list
    ZipMember m{std::string(entry.full_name.substr(slash + 1)), entry.header_offset, 0, entry.stored_size, entry.size,
                entry.crc32, entry.method};
    archive.members.push_back(std::move(m));
  }
  sort_names(archive, name);
  locate_members(read, length, end, archive, name, base);
  return archive;
}

const ZipMember* ZipArchive::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name.begin(), by_name.end(), name,
                                   [&](uint32_t i, std::string_view n) { return members[i].name < n; });
  return at != by_name.end() && members[*at].name == name ? &members[*at] : nullptr;
}

}  // namespace fsdpctl
