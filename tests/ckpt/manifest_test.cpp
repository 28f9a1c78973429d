#include "lib/ckpt/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "lib/base/checksum.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

Manifest sample() {
  Manifest m;
  m.format = "dcp";
  m.metadata_file = ".metadata";
  m.metadata_crc64 = 0x0123456789abcdefu;
  m.fingerprint = 0xffffffffffffffffu;
  m.source_format = "torch";
  m.source_fingerprint = 1;
  m.read_back = true;
  m.tensors = {{"a.\"quoted\"\n", "float32", {2, 3}, 7}, {"0-d", "int64", {}, 8}, {"surrogate \xED\xA0\x80", "bool", {0}, 9}};
  m.changes = {{"renamed", "old", "new"}, {"dropped", "\xff", "why"}};
  return m;
}

Exit code_of(std::string_view text) {
  try {
    parse_manifest(text, "m.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.finding().where.path, "m.json");
    return e.code();
  }
  return Exit::ok;
}

TEST(Manifest, TextReadsBackWhateverNamesHold) {
  const Manifest m = sample();
  const std::string text = manifest_text(m);
  const Manifest back = parse_manifest(text, "m.json");
  EXPECT_EQ(manifest_text(back), text);
  ASSERT_EQ(back.tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(back.tensors[i].key, m.tensors[i].key);
    EXPECT_EQ(back.tensors[i].shape, m.tensors[i].shape);
    EXPECT_EQ(back.tensors[i].crc64, m.tensors[i].crc64);
  }
  EXPECT_EQ(back.changes[1].key, "\xff");
  EXPECT_EQ(back.metadata_crc64, m.metadata_crc64);
  EXPECT_TRUE(back.read_back);
  EXPECT_NE(text.find("{\"key\": \"0-d\", \"dtype\": \"int64\", \"shape\": [], \"crc64\": \"0000000000000008\"}"), std::string::npos);
}

TEST(Manifest, UnknownMembersAreSkippedWhateverTheyHold) {
  const Manifest m = parse_manifest(
      R"({"fsdpctl_manifest": 1, "later": {"tensors": [{"key": "x"}], "a": [[1, {"b": 2.5}]]}, "metadata_crc64": "00000000000000ff",
          "tensors": [{"key": "t", "shape": [1], "more": {"key": "no"}, "crc64": "0000000000000001"}, 3, ["key"]], "changes": [["x"]]})",
      "m");
  EXPECT_EQ(m.metadata_crc64, 255u);
  ASSERT_EQ(m.tensors.size(), 1u);
  EXPECT_EQ(m.tensors[0].key, "t");
}

TEST(Manifest, DamageIsNamed) {
  EXPECT_EQ(code_of(""), Exit::damaged);
  EXPECT_EQ(code_of("{}"), Exit::damaged);
  EXPECT_EQ(code_of("[[[[["), Exit::damaged);
  EXPECT_EQ(code_of(R"({"fsdpctl_manifest": 1})"), Exit::damaged);
  EXPECT_EQ(code_of(R"({"fsdpctl_manifest": 1, "metadata_crc64": "12"})"), Exit::damaged);
  EXPECT_EQ(code_of(R"({"fsdpctl_manifest": 1, "metadata_crc64": "00000000000000zz"})"), Exit::damaged);
  EXPECT_EQ(code_of(R"({"fsdpctl_manifest": 4294967297, "metadata_crc64": "0000000000000000"})"), Exit::unsupported);
  std::string deep = R"({"fsdpctl_manifest": 1, "x": )" + std::string(100000, '[');
  EXPECT_EQ(code_of(deep), Exit::damaged);
  const std::string text = manifest_text(sample());
  for (size_t cut = 0; cut + 2 < text.size(); ++cut) EXPECT_NE(code_of(text.substr(0, cut)), Exit::ok) << cut;
}

// A stored checkpoint and its manifest.
struct Stored {
  TempDir dir;
  MadeCheckpoint m;
  std::vector<TensorSum> sums;
  Stored() {
    m.checkpoint.tree = dict({{"w", m.tensor("", {3})}});
    m.store(dir.path());
    sums.resize(1);
    sums[0].crc64 = 5;
  }
};

TEST(Manifest, BelongsToOneSave) {
  Stored s;
  FindingSink sink;
  EXPECT_FALSE(find_manifest(s.m.checkpoint, sink).has_value());
  const Manifest made = describe(s.m.checkpoint, s.sums);
  EXPECT_EQ(made.metadata_file, "made.bin");
  EXPECT_EQ(made.tensors.at(0).key, "w");
  write_new_file(manifest_path(s.dir.path(), true), manifest_text(made));
  const auto found = find_manifest(s.m.checkpoint, sink);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->tensors[0].crc64, 5u);
  EXPECT_TRUE(sink.all().empty());

  EXPECT_TRUE(is_untouched(s.m.checkpoint));

  // Damaged, which is for verify to see; then saved over.
  FileHandle::open_write(s.dir / "made.bin").write(0, std::as_bytes(std::span("x", 1)));
  EXPECT_TRUE(find_manifest(s.m.checkpoint, sink).has_value());
  std::filesystem::last_write_time(s.dir / "made.bin", std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(is_untouched(s.m.checkpoint));
  s.m.checkpoint.tensors[0].dtype = DType::int32;
  EXPECT_FALSE(find_manifest(s.m.checkpoint, sink).has_value());
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].severity, Severity::warning);
  EXPECT_EQ(sink.all()[0].what, "manifest belongs to another save and is ignored");
}

TEST(Manifest, AMetadataFileWithoutDataIsSummed) {
  Stored s;
  write_new_file(s.dir / "index", "names");
  s.m.checkpoint.metadata_file = "index";
  s.m.checkpoint.source = Source::open(s.dir.path());
  s.m.checkpoint.source->add("made.bin");
  EXPECT_EQ(describe(s.m.checkpoint, s.sums).metadata_crc64, crc64(std::as_bytes(std::span("names", 5))));
}

TEST(Manifest, OfLargeMetadataBothEndsAndTheSizeCount) {
  Stored s;
  write_new_file(s.dir / "index", "");
  s.m.checkpoint.metadata_file = "index";
  const uint64_t size = (uint64_t{64} << 20) + 4096;
  FileHandle file = FileHandle::open_write(s.dir / "index");
  file.resize(size);   // sparse
  Stored* self = &s;
  const auto sum = [self] {
    self->m.checkpoint.source = Source::open(self->dir.path());
    for (Piece& piece : self->m.checkpoint.pieces) piece.source = self->m.checkpoint.source->add("made.bin");
    return describe(self->m.checkpoint, self->sums).metadata_crc64;
  };
  const uint64_t before = sum();
  file.resize(size + 4096);   // both ends are zeros as before
  EXPECT_NE(sum(), before);
  file.resize(size);
  const auto poke = [&](uint64_t offset) { file.write(offset, std::as_bytes(std::span("x", 1))); };
  poke(size - 1);
  const uint64_t tail = sum();
  EXPECT_NE(tail, before);
  poke(0);
  EXPECT_NE(sum(), tail);
  file.resize(size + 1);
  EXPECT_NE(sum(), tail);
}

TEST(Manifest, AnUnreadableOneIsAWarning) {
  Stored s;
  write_new_file(manifest_path(s.dir.path(), true), "{\"fsdpctl_manifest\": 1");
  FindingSink sink;
  EXPECT_FALSE(find_manifest(s.m.checkpoint, sink).has_value());
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].what, "manifest cannot be read and is ignored");
  EXPECT_EQ(sink.all()[0].severity, Severity::warning);
  EXPECT_TRUE(has_manifest_file(s.m.checkpoint));
  FindingSink verifying(/*strict=*/false);
  find_manifest(s.m.checkpoint, verifying, Severity::error);   // as verify asks
  EXPECT_TRUE(verifying.has_errors());
}

}  // namespace
}  // namespace fsdpctl
