#include "lib/ckpt/publish_as_rank.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "lib/base/checksum.h"
#include "lib/ckpt/held_ranges.h"
#include "lib/ckpt/rank_transfer.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/made_format.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layout.h"
#include "tests/support/thread_coordinator.h"

namespace fsdpctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class HeldRanges : public testing::TestWithParam<uint64_t> {
 protected:
  HeldRanges() : made(GetParam()) {
    for (int i = 0; i < 30; ++i) made.add(random_tensor(made.random));
    made.write();
    for (auto& layout : random_layouts(made, 4, GetParam() % 2)) plan.push_back(std::move(layout));
    for (const Piece& piece : made.checkpoint.pieces) ranks = std::max(ranks, piece.rank + 1);
  }
  WrittenCheckpoint made;
  FilePlan plan;
  int ranks = 2;
};
INSTANTIATE_TEST_SUITE_P(Seeds, HeldRanges, testing::Range<uint64_t>(1, 9));

TEST_P(HeldRanges, OfAllRanksAreEveryByteOnce) {
  std::vector<std::string> written;
  for (const auto& file : plan) written.push_back(std::string(file->size(), '\0'));
  for (int rank = 0; rank < ranks; ++rank) {
    FileRange last;
    for (const FileRange& range : held_ranges(made.checkpoint, plan, rank, ranks)) {
      EXPECT_LT(range.begin, range.end);
      EXPECT_TRUE(range.file > last.file || range.begin > last.end || last.end == 0) << "not joined";
      for (uint64_t at = range.begin; at < range.end; ++at) ++written[range.file][at];
      last = range;
    }
  }
  for (const std::string& file : written) EXPECT_EQ(file, std::string(file.size(), '\1'));
}

// Whatever cuts, strides and replicas the pieces have, and with checksums that depend on what several ranks wrote.
TEST_P(HeldRanges, AreWrittenToTheSameFilesAsByOne) {
  TempDir directory;
  create_files(plan, directory.path());
  RankTotals totals(made.checkpoint, plan);
  EngineOptions options;
  options.threads = 2;
  options.max_memory = 16 << 20;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto records = transfer_ranges(made.checkpoint, plan, directory.path(), held_ranges(made.checkpoint, plan, rank, ranks), options);
    totals.add(parse_records(records_text(records)));
  }
  const std::string late = records_text(totals.late_records());
  for (int rank = 0; rank < ranks; ++rank) finish_files(plan, directory.path(), parse_records(late), rank, ranks);
  for (const auto& file : plan) {
    EXPECT_EQ(read_text(directory / file->path(), 1 << 30), static_cast<const TestLayout&>(*file).expected()) << file->path();
  }
  EXPECT_EQ(totals.sums().size(), made.content.size());
}

// Three ranks with memory of their own; the last two hold the same part of `r`, and what the last one holds of it is wrong.
class AsRanks : public testing::TestWithParam<bool> {
 protected:
  static constexpr int kRanks = 3;
  AsRanks() : format(GetParam()), out(dir / "out") {
    target.file_name = "out";
    target.directory = !GetParam();
    options.arguments = "save";
    options.engine.threads = 2;
  }
  ~AsRanks() override { set_fault_hook(nullptr); }

  struct Live {
    MadeCheckpoint made;
    std::vector<std::vector<uint32_t>> memory;
  };
  // The catalog of all ranks with the bytes of one.
  static Live live(int rank) {
    Live l;
    MadeCheckpoint& m = l.made;
    const Value w = m.shard("", {5, 4}, kRanks), e = m.tensor("", {0, 3});
    const Value f = m.tensor("", {3, 7}, {{{0, 0}, {1, 7}, 0}, {{1, 0}, {1, 2}, 0}, {{1, 2}, {1, 5}, 2}, {{2, 0}, {1, 7}, 2}});
    const Value r = m.tensor("", {6}, {{{0}, {2}, 0}, {{2}, {4}, 1}, {{2}, {4}, 2}});
    m.checkpoint.tree = dict({{"model", dict({{"w", w}, {"e", e}, {"f", f}, {"r", r}})}, {"step", Value::integer(7)}});
    m.checkpoint.format = "live";
    m.checkpoint.source = Source::in_memory("a run");
    m.checkpoint.world_size = kRanks;
    for (Piece& piece : m.checkpoint.pieces) {
      const std::string name = fmt::format("{} of {}", m.checkpoint.source->file_count(), piece.rank);
      std::vector<uint32_t> numbers(count(piece.box));
      for (uint64_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint32_t>(piece.tensor == 3 && piece.rank == 2 ? 0 : element(piece, i));
      if (piece.rank == rank) {
        l.memory.push_back(numbers);
        piece.source = m.checkpoint.source->lend(name, std::as_bytes(std::span(l.memory.back())));
      } else {
        piece.source = m.checkpoint.source->elsewhere(name, numbers.size() * 4);
      }
      piece.offset = 0;
      piece.length = numbers.size() * 4;
    }
    FindingSink strict;
    m.checkpoint.finish(strict);
    return l;
  }
  static uint64_t element(const Piece& piece, uint64_t i) {
    // All boxes here are runs of the row-major order.
    static const std::map<TensorIndex, std::vector<int64_t>> shapes = {{0, {5, 4}}, {1, {0, 3}}, {2, {3, 7}}, {3, {6}}};
    return made_element(piece.tensor, flat_start(shapes.at(piece.tensor), piece.box).value_or(0) + i);
  }

  std::vector<std::optional<Finding>> save() {
    return as_ranks(kRanks, [&](Coordinator& ranks) {
      FindingSink sink(/*strict=*/false);
      Live mine = live(ranks.rank());
      if (change) change(ranks.rank(), mine.made.checkpoint);
      results[static_cast<size_t>(ranks.rank())] = publish_as_rank(mine.made.checkpoint, format, target, out, options, ranks, sink);
    });
  }
  std::vector<std::string> beside() const { return list_directory(dir.path()); }
  void expect_all_fail(const std::string& what, int rank) {
    const auto findings = save();
    for (const auto& finding : findings) {
      ASSERT_TRUE(finding) << "a rank went on";
      EXPECT_EQ(finding->what, what);
      EXPECT_EQ(finding->where.rank, rank);
    }
    EXPECT_THAT(beside(), IsEmpty());
  }

  TempDir dir;
  MadeFormat format;
  Target target;
  PublishOptions options;
  std::string out;
  std::function<void(int rank, Checkpoint&)> change;
  std::array<PublishResult, kRanks> results;
};
INSTANTIATE_TEST_SUITE_P(Layout, AsRanks, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& tested) { return tested.param ? "File" : "Directory"; });

TEST_P(AsRanks, WriteWhatOneWouldEachItsOwnElements) {
  for (const auto& finding : save()) EXPECT_FALSE(finding) << Error(*finding).what();
  uint64_t written = 0;
  for (const PublishResult& result : results) {
    EXPECT_TRUE(result.published);
    EXPECT_GT(result.bytes_written, 0u);
    written += result.bytes_written;
  }
  EXPECT_EQ(written, results[0].bytes);
  FindingSink sink;
  const Checkpoint again = format.open(Source::open(out), sink);
  EXPECT_EQ(again.tree.find("step")->as_integer(), 7);
  const auto sums = fingerprint(again, {}, options.engine);
  const auto manifest = find_manifest(again, sink);
  ASSERT_TRUE(manifest.has_value());
  EXPECT_TRUE(manifest->read_back);
  EXPECT_EQ(manifest->source_format, "live");
  for (TensorIndex t = 0; t < sums.size(); ++t) {
    EXPECT_EQ(manifest->tensors[t].crc64, sums[t].crc64);
    std::string bytes;
    for (uint64_t i = 0; i < count(again.tensors[t].shape); ++i) {
      for (int b = 0; b < 4; ++b) bytes += static_cast<char>(made_element(t, i) >> (8 * b) & 0xff);
    }
    EXPECT_EQ(sums[t].crc64, crc64(as_bytes(bytes))) << again.tensors[t].key;
  }
  EXPECT_EQ(beside().size(), GetParam() ? 2u : 1u);   // no partial
}

TEST_P(AsRanks, OneThatFailsMakesAllFailAndNothingIsPublished) {
  std::atomic<int> writes = 0;
  int failures = 0;
  for (const char* operation : {"write", "sync", "read"}) {
    for (const int nth : {1, 4}) {
      writes = 0;
      set_fault_hook([&](std::string_view called, const std::string& path) {
        const bool hit = called == operation && path.find("data/") != std::string::npos && ++writes == nth;
        return hit ? ENOSPC : 0;
      });
      const auto findings = save();
      set_fault_hook(nullptr);
      if (writes < nth) {   // there are fewer
        for (const std::string& name : beside()) remove_tree(dir / name);
        continue;
      }
      ++failures;
      for (const auto& finding : findings) {
        ASSERT_TRUE(finding) << operation << nth << ": a rank went on";
        EXPECT_EQ(finding->code, Exit::failed);
        EXPECT_EQ(finding->what, findings[0]->what);
        EXPECT_EQ(finding->where.rank, findings[0]->where.rank);
      }
      EXPECT_THAT(beside(), IsEmpty()) << operation << nth;
    }
  }
  EXPECT_GE(failures, 4);
  EXPECT_FALSE(save()[0]);
}

TEST_P(AsRanks, ThatDisagreeWriteNothing) {
  change = [](int rank, Checkpoint& c) {
    if (rank == 1) c.tree = dict({{"model", *c.tree.find("model")}, {"step", Value::integer(8)}});
  };
  expect_all_fail("ranks disagree about the checkpoint that they write", -1);
}

TEST_P(AsRanks, RefuseAnOutputThatIsThere) {
  write_new_file(out, "mine");
  for (const auto& finding : save()) {
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->code, Exit::usage);
  }
  EXPECT_EQ(read_text(out, 100), "mine");
}

TEST_P(AsRanks, ReadBackThroughTheOutputsOwnReader) {
  // The table says that two tensors lie where the other one does: every byte is as it was written, and yet it is wrong.
  format.tamper = [](Value&, std::vector<MadeRow>& rows) {
    std::swap(rows[0].tensor, rows[2].tensor);
    std::swap(rows[0].shape, rows[2].shape);
  };
  const auto findings = save();
  for (const auto& finding : findings) ASSERT_TRUE(finding);
  EXPECT_THAT(beside(), IsEmpty());
}

TEST_P(AsRanks, StopWhenAsked) {
  std::atomic<bool> cancel = true;
  options.engine.cancel = &cancel;
  for (const auto& finding : save()) {
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->code, Exit::interrupted);
  }
  EXPECT_THAT(beside(), IsEmpty());
}

}  // namespace
}  // namespace fsdpctl
