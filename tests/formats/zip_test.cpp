#include "formats/codec/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "formats/codec/little_endian.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using testing::HasSubstr;

struct Member {
  std::string name, data;
};

// An archive as TorchArchiveLayout would frame it.
std::string write_archive(const std::vector<Member>& members, uint64_t begin = 0) {
  std::string out, central;
  for (const Member& m : members) {
    const ZipHeader h = plan_zip_member(begin + out.size(), m.name.size(), m.data.size());
    const uint32_t crc = crc32(std::as_bytes(std::span(m.data)));
    write_zip_local(h, m.name, out);
    EXPECT_EQ(begin + out.size(), h.data_offset) << m.name;
    out += m.data;
    write_zip_descriptor(h, crc, out);
    EXPECT_EQ(begin + out.size(), h.end_offset) << m.name;
    const size_t before = central.size();
    write_zip_central(h, m.name, crc, central);
    EXPECT_EQ(central.size() - before, zip_central_size(h, m.name.size()));
  }
  const uint64_t directory = begin + out.size();
  out += central;
  write_zip_end(directory, central.size(), members.size(), out);
  EXPECT_EQ(begin + out.size(), directory + central.size() + kZipEndSize);
  return out;
}

std::vector<Member> example() {
  return {{"archive/data.pkl", std::string(162, 'p')}, {"archive/.format_version", "1"}, {"archive/.storage_alignment", "64"},
          {"archive/byteorder", "little"}, {"archive/data/0", "0123456789abcdef"}, {"archive/data/1", ""},
          {"archive/version", "3\n"}, {"archive/.data/serialization_id", std::string(40, '0')}};
}

ZipRead reader(const std::string& bytes, uint64_t begin = 0) {
  return [&bytes, begin](uint64_t offset, std::span<std::byte> out) {
    if (offset < begin || offset - begin > bytes.size() || out.size() > bytes.size() - (offset - begin)) {
      throw Error(Exit::damaged, "read past the end");
    }
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + (offset - begin), out.size());
  };
}

ZipArchive read(const std::string& bytes) { return read_zip(reader(bytes), bytes.size(), "x.pt", 1000); }

std::string error_of(const std::string& bytes, Exit code) {
  try {
    read(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no Error";
  return {};
}

// Offsets and length of PyTorch's own archive of these members (formats/torch.md).
TEST(Zip, FramesLikePyTorch) {
  const std::string bytes = write_archive(example());
  EXPECT_EQ(bytes.size(), 1701u);
  const ZipArchive archive = read(bytes);
  EXPECT_EQ(archive.prefix, "archive");
  std::vector<uint64_t> headers, data;
  for (const ZipMember& m : archive.members) headers.push_back(m.header_offset), data.push_back(m.data_offset);
  EXPECT_THAT(headers, testing::ElementsAre(0, 242, 337, 466, 598, 736, 832, 914));
  EXPECT_THAT(data, testing::ElementsAre(64, 320, 448, 576, 704, 832, 896, 1024));
}

TEST(Zip, FindsMembersByName) {
  const std::string bytes = write_archive(example());
  const ZipArchive archive = read(bytes);
  ASSERT_NE(archive.find("data/0"), nullptr);
  EXPECT_EQ(read_zip_member(reader(bytes), *archive.find("data/0"), 100, "x.pt", 0), "0123456789abcdef");
  EXPECT_EQ(read_zip_member(reader(bytes), *archive.find("data/1"), 100, "x.pt", 0), "");
  EXPECT_EQ(archive.find("data/2"), nullptr);
  EXPECT_EQ(archive.find("archive/data/0"), nullptr);
}

// Past 4 GiB descriptors grow to 24 bytes even for small members, and offsets move to zip64 blocks.
TEST(Zip, MembersPast4GiB) {
  const uint64_t far = (5ull << 30) + 17;
  const std::string bytes = write_archive({{"a/x", "1234"}, {"a/empty", ""}}, far);
  const auto at_far = [&](uint64_t offset, std::span<std::byte> out) { reader(bytes, far)(offset, out); };
  const ZipEnd end = find_zip_end(std::as_bytes(std::span(bytes)), far + bytes.size(), "x.pt", 0);
  EXPECT_EQ(end.entries, 2u);
  const ZipArchive archive = read_zip(
      [&](uint64_t offset, std::span<std::byte> out) {   // zeros before `far`
        const uint64_t hole = offset < far ? std::min<uint64_t>(far - offset, out.size()) : 0;
        std::memset(out.data(), 0, hole);
        if (hole < out.size()) at_far(offset + hole, out.subspan(hole));
      },
      far + bytes.size(), "x.pt", 0);
  const ZipMember& x = *archive.find("x");
  EXPECT_EQ(x.header_offset, far);
  EXPECT_EQ(x.data_offset % 64, 0u);
  EXPECT_EQ(plan_zip_member(far, 3, 4).end_offset, x.data_offset + 4 + 24);
  EXPECT_EQ(plan_zip_member(far, 7, 0).end_offset, plan_zip_member(far, 7, 0).data_offset);
}

TEST(Zip, MemberOf4GiB) {
  for (const uint64_t size : {0xFFFFFFFEull, 0xFFFFFFFFull, 5ull << 30}) {
    const ZipHeader h = plan_zip_member(0, 8, size);
    std::string local, descriptor, central;
    write_zip_local(h, "a/data/0", local);
    write_zip_descriptor(h, 7, descriptor);
    write_zip_central(h, "a/data/0", 7, central);
    EXPECT_EQ(local.size(), h.data_offset);
    EXPECT_EQ(h.end_offset, h.data_offset + size + descriptor.size());
    EXPECT_EQ(descriptor.size(), size >= 0xFFFFFFFF ? 24u : 16u);
    EXPECT_EQ(central.size(), zip_central_size(h, 8));
    const ZipEnd end{h.end_offset, central.size(), 1};
    ZipEntry entry;
    ZipDirectory directory(std::as_bytes(std::span(central)), end, "x.pt", 0);
    ASSERT_TRUE(directory.next(entry));
    EXPECT_EQ(entry.size, size);
    EXPECT_EQ(entry.stored_size, size);
    EXPECT_EQ(zip_data_offset(std::as_bytes(std::span(local)), entry, end, "x.pt", 0), h.data_offset);
    EXPECT_FALSE(directory.next(entry));
  }
}

// What we would write for an archive's members: the bytes of real PyTorch, from its first to its last.
void expect_our_framing(const ZipRead& read, uint64_t length) {
  const ZipArchive archive = read_zip(read, length, "x.pt", 0);
  const auto bytes = [&](uint64_t offset, size_t size) {
    std::string text(size, '\0');
    read(offset, std::as_writable_bytes(std::span(text)));
    return text;
  };
  uint64_t at = 0;
  std::string directory;
  for (const ZipMember& m : archive.members) {
    const std::string name = archive.prefix + "/" + m.name;
    const ZipHeader h = plan_zip_member(at, name.size(), m.size);
    ASSERT_EQ(h.header_offset, m.header_offset) << name;
    ASSERT_EQ(h.data_offset, m.data_offset) << name;
    std::string local, descriptor;
    write_zip_local(h, name, local);
    write_zip_descriptor(h, m.crc32, descriptor);
    EXPECT_EQ(local, bytes(h.header_offset, local.size())) << name;
    EXPECT_EQ(descriptor, bytes(h.data_offset + h.data_size, descriptor.size())) << name;
    write_zip_central(h, name, m.crc32, directory);
    at = h.end_offset;
  }
  write_zip_end(at, directory.size(), archive.members.size(), directory);
  EXPECT_EQ(directory, bytes(at, length - at));
}

TEST(Zip, FramesLikeRealFiles) {
  size_t files = 0;
  for (const char* folder : {"2.13.0/plain", "2.13.0/odd-torch"}) {
    if (!std::filesystem::exists(test_data(folder))) continue;
    for (const auto& entry : std::filesystem::directory_iterator(test_data(folder))) {
      const std::string bytes = get_file(entry.path());
      if (!bytes.starts_with("PK")) continue;
      SCOPED_TRACE(entry.path());
      expect_our_framing(reader(bytes), bytes.size());
      ++files;
    }
  }
  EXPECT_GT(files, 10u);
}

// {"big": 2^32 + 5 bytes, "after", "empty", "x"} by real PyTorch, without the zeros of the big one.
TEST(Zip, FramesLikeARealFileOfMoreThan4GiB) {
  const std::string head = get_file(test_data("torch-4gib/head.bin")), tail = get_file(test_data("torch-4gib/tail.bin"));
  const uint64_t tail_offset = head.size() + (1ull << 32) + 5;
  const ZipRead read = [&](uint64_t offset, std::span<std::byte> out) {
    for (size_t i = 0; i < out.size(); ++i, ++offset) {
      const char c = offset < head.size() ? head[offset] : offset < tail_offset ? '\0' : tail.at(offset - tail_offset);
      out[i] = static_cast<std::byte>(c);
    }
  };
  expect_our_framing(read, tail_offset + tail.size());
}

TEST(Zip, EveryTruncationIsDamage) {
  const std::string bytes = write_archive(example());
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_THAT(error_of(bytes.substr(0, n), Exit::damaged), HasSubstr("no end record")) << n;
  }
}

// No flipped bit may crash, hang or lead outside; what it changes is at most a checksum, a name or a number that
// nothing depends on.
TEST(Zip, EveryFlippedBitIsHandled) {
  const std::string bytes = write_archive(example());
  int refused = 0;
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    std::string flipped = bytes;
    flipped[i / 8] = static_cast<char>(flipped[i / 8] ^ (1 << (i % 8)));
    try {
      for (const ZipMember& m : read(flipped).members) {
        EXPECT_LE(m.data_offset, bytes.size());
        EXPECT_LE(m.stored_size, bytes.size() - m.data_offset);
      }
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == Exit::damaged || e.code() == Exit::unsupported) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Zip, RefusesHostileNames) {
  for (const char* name : {"archive/../x", "archive/a/../../x", "/archive/x", "archive\\..\\x", "..", "archive/.."}) {
    auto members = example();
    members.push_back({name, "1"});
    EXPECT_THAT(error_of(write_archive(members), Exit::unsupported), HasSubstr("leaves the archive")) << name;
  }
  auto members = example();
  members.push_back({"archive/..data", "dots are fine"});
  EXPECT_NO_THROW(read(write_archive(members)));
}

TEST(Zip, RefusesDuplicatesAndForeignFolders) {
  auto members = example();
  members.push_back({"archive/data/0", "other bytes"});
  EXPECT_THAT(error_of(write_archive(members), Exit::unsupported), HasSubstr("duplicate"));
  members.back() = {"other/data/2", "x"};
  EXPECT_THAT(error_of(write_archive(members), Exit::damaged), HasSubstr("one folder"));
  members.back() = {"bare", "x"};
  EXPECT_THAT(error_of(write_archive(members), Exit::damaged), HasSubstr("one folder"));
}

// Where the central directory's entry `index` of an archive begins.
size_t central_entry(const std::string& bytes, size_t index) {
  size_t at = bytes.find("PK\1\2");
  for (; index > 0; --index) at = bytes.find("PK\1\2", at + 4);
  return at;
}

void patch(std::string& bytes, size_t at, uint32_t value) { std::memcpy(bytes.data() + at, &value, 4); }

TEST(Zip, RefusesOverlapsAndMembersOutside) {
  const std::string good = write_archive(example());
  std::string bad = good;
  patch(bad, central_entry(bad, 6) + 42, 736);   // `version` at data/1's header
  EXPECT_THAT(error_of(bad, Exit::damaged), HasSubstr("overlap"));
  bad = good;
  patch(bad, central_entry(bad, 4) + 42, 1u << 20);
  EXPECT_THAT(error_of(bad, Exit::damaged), HasSubstr("outside the archive"));
  bad = good;
  patch(bad, central_entry(bad, 4) + 20, 1u << 20);
  patch(bad, central_entry(bad, 4) + 24, 1u << 20);
  EXPECT_THAT(error_of(bad, Exit::damaged), HasSubstr("outside the archive"));
  bad = good;
  patch(bad, central_entry(bad, 4) + 24, 17);
  EXPECT_THAT(error_of(bad, Exit::damaged), HasSubstr("two sizes"));
}

TEST(Zip, RefusesEncryptionDisksAndUnknownMethods) {
  const std::string good = write_archive(example());
  std::string bad = good;
  bad[central_entry(bad, 4) + 8] |= 1;
  EXPECT_THAT(error_of(bad, Exit::unsupported), HasSubstr("encrypted"));
  bad = good;
  bad[central_entry(bad, 4) + 10] = 12;
  EXPECT_THAT(error_of(bad, Exit::unsupported), HasSubstr("method 12"));
  bad = good;
  bad[central_entry(bad, 4) + 34] = 1;
  EXPECT_THAT(error_of(bad, Exit::unsupported), HasSubstr("several disks"));
}

TEST(Zip, RefusesDirectoryThatLies) {
  const std::string good = write_archive(example());
  const size_t end64 = good.size() - kZipEndSize;
  for (const auto& [at, value] : std::vector<std::pair<size_t, uint32_t>>{
           {end64 + 32, 7}, {end64 + 32, 9}, {end64 + 32, 0xFFFFFFFF}, {end64 + 40, 1}, {end64 + 48, 1u << 30}, {end64 + 52, 1}}) {
    std::string bad = good;
    patch(bad, at, value);
    if (at == end64 + 32) patch(bad, at - 8, value), bad.replace(good.size() - 14, 4, "\xFF\xFF\xFF\xFF", 4);
    error_of(bad, Exit::damaged);
  }
}

TEST(Zip, ChecksMembersAgainstTheirCrc) {
  std::string bytes = write_archive(example());
  bytes[704] ^= 1;
  const ZipArchive archive = read(bytes);
  EXPECT_THROW(read_zip_member(reader(bytes), *archive.find("data/0"), 100, "x.pt", 0), Error);
  ZipMember not_computed = *archive.find("data/0");
  not_computed.crc32 = 0;
  EXPECT_EQ(read_zip_member(reader(bytes), not_computed, 100, "x.pt", 0).size(), 16u);
  EXPECT_THROW(read_zip_member(reader(bytes), not_computed, 15, "x.pt", 0), Error);
}

// 13 times 'a', raw deflate.
const std::string kDeflated("\x4b\x4c\x44\x02\x00", 5);
const std::string kInflated(13, 'a');

TEST(Zip, Inflates) {
  ZipMember m{"data/0", 0, 0, kDeflated.size(), kInflated.size(), crc32(std::as_bytes(std::span(kInflated))), kZipDeflated};
  EXPECT_EQ(read_zip_member(reader(kDeflated), m, 100, "x.pt", 0), kInflated);
  for (const uint64_t size : {0, 1, 12, 14, 1000000}) {
    m.size = size;
    EXPECT_THROW(read_zip_member(reader(kDeflated), m, 1 << 20, "x.pt", 0), Error) << size;
  }
  m.size = kInflated.size();
  for (uint64_t cut = 0; cut < kDeflated.size(); ++cut) {
    m.stored_size = cut;
    EXPECT_THROW(read_zip_member(reader(kDeflated), m, 100, "x.pt", 0), Error) << cut;
  }
  m.stored_size = kDeflated.size();
  ++m.crc32;
  EXPECT_THROW(read_zip_member(reader(kDeflated), m, 100, "x.pt", 0), Error);
}

TEST(Zip, RefusesBombsBeforeInflating) {
  const ZipMember m{"data.pkl", 0, 0, 40000, 40000000, 0, kZipDeflated};
  EXPECT_THROW(read_zip_member([](uint64_t, std::span<std::byte>) { FAIL() << "read"; }, m, 1ull << 31, "x.pt", 0), Error);
}

}  // namespace
}  // namespace fsdpctl
