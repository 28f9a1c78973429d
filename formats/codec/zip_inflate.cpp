#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "formats/codec/zip.h"

namespace fsdpctl {
namespace {

constexpr size_t kBlock = 64 << 10;

Error damaged(std::string what, const ZipMember& member, const std::string& name, uint64_t base) {
  const uint64_t begin = base + member.data_offset;
  return Error(Exit::damaged, std::move(what)).at(name).range(begin, begin + member.stored_size).found_only(member.name);
}

struct Inflater {
  Inflater() {
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw Error(Exit::failed, "cannot start zlib");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  z_stream stream{};
};

void check_crc(uint32_t computed, const ZipMember& member, const std::string& name, uint64_t base) {
  if (member.crc32 == 0 || computed == member.crc32) return;   // 0: not computed when it was written
  throw damaged("archive member does not match its checksum", member, name, base)
      .saw(fmt::format("CRC-32 {:08x}", member.crc32), fmt::format("{:08x} of {}", computed, member.name));
}

// What a real pickle or number may inflate to: anything small, otherwise at most a hundredfold.
bool out_of_proportion(const ZipMember& member) {
  constexpr uint64_t kSmall = 16 << 20;
  return member.method == kZipDeflated && member.size > kSmall && member.size / 100 > member.stored_size;
}

}  // namespace

void inflate_zip_member(const ZipRead& read, const ZipMember& member, const std::string& name, uint64_t base,
                        const std::function<void(uint64_t offset, Bytes block)>& out) {
  Inflater inflater;
  z_stream& z = inflater.stream;
  const auto input = std::make_unique<std::byte[]>(kBlock), output = std::make_unique<std::byte[]>(kBlock);
  uint64_t consumed = 0, produced = 0;
  uint32_t crc = 0;
  for (int status = Z_OK; status != Z_STREAM_END;) {
    if (z.avail_in == 0 && consumed < member.stored_size) {
      const size_t n = std::min<uint64_t>(kBlock, member.stored_size - consumed);
      read(member.data_offset + consumed, {input.get(), n});
      consumed += n;
      z.next_in = reinterpret_cast<Bytef*>(input.get());
      z.avail_in = static_cast<uInt>(n);
    }
    z.next_out = reinterpret_cast<Bytef*>(output.get());
    z.avail_out = kBlock;
    status = inflate(&z, Z_NO_FLUSH);
    const size_t n = kBlock - z.avail_out;
    const bool stuck = status == Z_BUF_ERROR || (n == 0 && z.avail_in == 0 && consumed == member.stored_size);
    if (status != Z_STREAM_END && (stuck || status != Z_OK)) {
      throw damaged("compressed archive member is damaged", member, name, base);
    }
    if (n > member.size - produced) throw damaged("compressed archive member is longer than it says", member, name, base);
    const Bytes block(output.get(), n);
    crc = crc32(block, crc);
    if (n > 0) out(produced, block);
    produced += n;
  }
  if (produced != member.size || z.avail_in != 0 || consumed != member.stored_size) {
    throw damaged("compressed archive member has another length than it says", member, name, base);
  }
  check_crc(crc, member, name, base);
}

std::string read_zip_member(const ZipRead& read, const ZipMember& member, uint64_t limit, const std::string& name,
                            uint64_t base) {
  if (member.size > limit || out_of_proportion(member)) {
    throw Error(Exit::unsupported, "archive member is too big to be read into memory")
        .at(name).saw(fmt::format("at most {} bytes", limit), fmt::format("{} bytes in {}", member.size, member.name));
  }
  std::string bytes(member.size, '\0');
  const auto target = std::as_writable_bytes(std::span(bytes));
  if (member.method == kZipDeflated) {
    inflate_zip_member(read, member, name, base, [&](uint64_t offset, Bytes block) {
      std::memcpy(bytes.data() + offset, block.data(), block.size());
    });
    return bytes;
  }
  read(member.data_offset, target);
  check_crc(crc32(target), member, name, base);
  return bytes;
}

}  // namespace fsdpctl
