#include "lib/ckpt/gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lib/base/checksum.h"
#include "tests/support/error_of.h"
#include "tests/support/written_checkpoint.h"

namespace fsdpctl {
namespace {

std::string read_text(Gatherer& gatherer, TensorIndex t, const Box& region, uint64_t begin, uint64_t end,
                      GatherResult* result = nullptr, GatherWants wants = {}) {
  std::string out(end - begin, '?');
  const GatherResult r = gatherer.read(t, region, begin, end, std::as_writable_bytes(std::span(out)), wants);
  if (result != nullptr) *result = r;
  return out;
}

std::string describe(const WrittenCheckpoint& made, TensorIndex t) {
  const TensorInfo& info = made.checkpoint.tensors[t];
  const Piece& p = made.checkpoint.pieces_of(t).front();
  return std::string(dtype_name(info.dtype)) + dims_text(info.shape) + " pieces " + std::to_string(info.piece_count) +
         (p.strides.empty() ? "" : " strides " + dims_text(p.strides)) + (p.swap ? " swap" : "") + (p.conj ? " conj" : "") +
         (p.neg ? " neg" : "");
}

class RandomTensors : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomTensors, AnyRangeOfAnyRegionReadsAsTheSlowReference) {
  WrittenCheckpoint made(GetParam());
  for (int i = 0; i < 40; ++i) made.add(random_tensor(made.random));
  made.write();
  Gatherer gatherer(made.checkpoint, 1 << 20, nullptr);
  for (TensorIndex t = 0; t < made.content.size(); ++t) {
    if (made.content[t].empty()) continue;
    SCOPED_TRACE(describe(made, t));
    const uint64_t item = item_size(made.checkpoint.tensors[t].dtype);
    for (int i = 0; i < 6; ++i) {
      const Box region = made.random_region(t);
      const std::string expected = made.region_bytes(t, region);
      const uint64_t n = expected.size() / item;
      const uint64_t begin = i == 0 ? 0 : made.random() % n, end = i == 0 ? n : begin + 1 + made.random() % (n - begin);
      GatherResult result;
      const std::string got = read_text(gatherer, t, region, begin * item, end * item, &result, {true, true});
      ASSERT_EQ(got, expected.substr(begin * item, (end - begin) * item)) << box_text(region) << " " << begin << " " << end;
      ASSERT_EQ(result.crc32, crc32(as_bytes(got)));
    }
  }
}

TEST_P(RandomTensors, ContributionsOfAnyPartitionGiveTheCrc) {
  WrittenCheckpoint made(GetParam() + 1000);
  for (int i = 0; i < 40; ++i) made.add(random_tensor(made.random));
  made.write();
  Gatherer gatherer(made.checkpoint, 1 << 20, nullptr);
  for (TensorIndex t = 0; t < made.content.size(); ++t) {
    SCOPED_TRACE(describe(made, t));
    const TensorInfo& info = made.checkpoint.tensors[t];
    const uint64_t item = item_size(info.dtype);
    // Columns as regions, and each region in two ranges.
    const int64_t columns = info.shape.empty() ? 1 : info.shape.back();
    uint64_t sum = 0;
    for (int64_t rank = 0; rank < 3; ++rank) {
      std::vector<int64_t> offset(info.shape.size()), size(info.shape.begin(), info.shape.end());
      if (!size.empty()) {
        std::tie(offset.back(), size.back()) = chunk_extent(columns, 3, rank);
      } else if (rank > 0) {
        continue;
      }
      const Box region = {offset, size};
      const uint64_t n = count(region);
      const uint64_t middle = n == 0 ? 0 : made.random() % n;
      GatherResult a, b;
      read_text(gatherer, t, region, 0, middle * item, &a);
      read_text(gatherer, t, region, middle * item, n * item, &b);
      EXPECT_EQ(a.crc64, a.source_crc64);
      sum ^= a.source_crc64 ^ b.source_crc64;
    }
    EXPECT_EQ(crc64_finish(sum, made.content[t].size()), crc64(as_bytes(made.content[t])));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomTensors, testing::Range<uint64_t>(1, 13));

// Sizes at which staging, tiling, windows and reading in place all happen.
TEST(Gather, LargeStridedTensors) {
  const WrittenTensor cases[] = {
      {.dtype = DType::float32, .shape = {700, 900}, .order = Order::transposed},
      {.dtype = DType::bfloat16, .shape = {64, 40, 300}, .order = Order::transposed},
      {.dtype = DType::float32, .shape = {300, 4096}, .cut = Cut::columns, .parts = 8},
      {.dtype = DType::float64, .shape = {5, 60000}, .cut = Cut::columns, .parts = 3},
      {.dtype = DType::uint8, .shape = {3, 900001}, .cut = Cut::rows, .parts = 3},
      {.dtype = DType::complex128, .shape = {100, 900}, .cut = Cut::grid, .parts = 3, .order = Order::padded, .conj = true},
      {.dtype = DType::float32, .shape = {1000, 1000}, .order = Order::expanded, .neg = true},
      {.dtype = DType::int16, .shape = {1500000}, .cut = Cut::flat, .parts = 7, .swap = true},
  };
  WrittenCheckpoint made(7, 8);
  for (const WrittenTensor& c : cases) made.add(c);
  made.write();
  Gatherer gatherer(made.checkpoint, 3 << 20, nullptr);
  for (TensorIndex t = 0; t < made.content.size(); ++t) {
    SCOPED_TRACE(describe(made, t));
    const TensorInfo& info = made.checkpoint.tensors[t];
    const Box whole = whole_box(*made.checkpoint.arena, info.shape);
    GatherResult result;
    ASSERT_TRUE(read_text(gatherer, t, whole, 0, made.content[t].size(), &result) == made.content[t]);
    EXPECT_EQ(crc64_finish(result.source_crc64, made.content[t].size()), crc64(as_bytes(made.content[t])));
    // A narrow column: most of each row on disk is not wanted.
    if (info.shape.size() < 2) continue;
    std::vector<int64_t> offset(info.shape.size(), 0), size(info.shape.begin(), info.shape.end());
    offset.back() = size.back() / 2;
    size.back() = 2;
    const std::string expected = made.region_bytes(t, {offset, size});
    ASSERT_TRUE(read_text(gatherer, t, {offset, size}, 0, expected.size()) == expected);
  }
}

TEST(Gather, ManyTinyTensorsNeedFewBytesMoreThanTheirFiles) {
  WrittenCheckpoint made(8, 2);
  for (int i = 0; i < 3000; ++i) made.add({.shape = {16, 16}, .cut = Cut::rows, .parts = 2, .crc32 = true});
  made.write();
  Gatherer gatherer(made.checkpoint, 1 << 20, nullptr);
  for (TensorIndex t = 0; t < made.content.size(); ++t) {
    const Box whole = whole_box(*made.checkpoint.arena, made.checkpoint.tensors[t].shape);
    ASSERT_EQ(read_text(gatherer, t, whole, 0, 1024), made.content[t]);
  }
  EXPECT_LE(gatherer.bytes_read(), (made.files[0].size() + made.files[1].size()) * 11 / 10);
}

TEST(Gather, ReadsOnlyTheRowsOfALargeTensorThatAreWanted) {
  WrittenCheckpoint made(9, 4);
  const TensorIndex t = made.add({.shape = {4096, 256}, .cut = Cut::rows, .parts = 1024});
  made.write();
  Gatherer gatherer(made.checkpoint, 1 << 20, nullptr);
  const std::vector<int64_t> offset = {1001, 0}, size = {30, 256};
  EXPECT_EQ(read_text(gatherer, t, {offset, size}, 0, 30 * 1024), made.region_bytes(t, {offset, size}));
  EXPECT_LE(gatherer.bytes_read(), 4 * 128 * 1024u);
}

TEST(PieceFinder, FindsAllPiecesThatMeetABoxAndFewOthers) {
  WrittenCheckpoint made(10);
  const TensorIndex rows = made.add({.shape = {3000, 2}, .cut = Cut::rows, .parts = 1000});
  const TensorIndex columns = made.add({.shape = {2, 3000}, .cut = Cut::columns, .parts = 1000, .replicas = 2});
  const TensorIndex flat = made.add({.shape = {40, 7, 11}, .cut = Cut::flat, .parts = 50});
  const PieceFinder finder(made.checkpoint);
  for (const TensorIndex t : {rows, columns, flat}) {
    for (int i = 0; i < 200; ++i) {
      const Box box = made.random_region(t);
      const std::span<const Piece> near = finder.near(t, box);
      for (const Piece& piece : made.checkpoint.pieces_of(t)) {
        if (is_empty(piece.box) || !overlap(piece.box, box)) continue;
        EXPECT_TRUE(&piece >= near.data() && &piece < near.data() + near.size()) << box_text(piece.box) << box_text(box);
      }
    }
  }
  const std::vector<int64_t> offset = {1500, 0}, size = {3, 2}, column_offset = {0, 1500}, column_size = {2, 3};
  EXPECT_LE(finder.near(rows, {offset, size}).size(), 2u);
  EXPECT_LE(finder.near(columns, {column_offset, column_size}).size(), 4u);
}

// ---- CRC-32 of pieces

struct CrcCase {
  const char* name;
  Cut cut;
  Order order;
  int columns;      // regions that read it
  int ranges;       // of each region
};

class PieceCrc : public testing::TestWithParam<CrcCase> {};

// Reads a tensor as the case says; throws if a checksum does not match.
void read_in_parts(WrittenCheckpoint& made, TensorIndex t, const CrcCase& c) {
  GatherContext context(made.checkpoint);
  Gatherer first(context, 1 << 20, nullptr), second(context, 1 << 20, nullptr);
  const TensorInfo& info = made.checkpoint.tensors[t];
  const uint64_t item = item_size(info.dtype);
  int turn = 0;
  for (int64_t rank = c.columns; rank-- > 0;) {
    std::vector<int64_t> offset(info.shape.size()), size(info.shape.begin(), info.shape.end());
    std::tie(offset.back(), size.back()) = chunk_extent(info.shape.back(), c.columns, rank);
    const auto n = static_cast<int64_t>(count(Box{offset, size}));
    for (int64_t range = c.ranges; range-- > 0;) {
      const auto [begin, length] = chunk_extent(n, c.ranges, range);
      const auto from = static_cast<uint64_t>(begin) * item, to = static_cast<uint64_t>(begin + length) * item;
      read_text(turn++ % 2 ? first : second, t, {offset, size}, from, to);
    }
  }
}

TEST_P(PieceCrc, MismatchIsFoundWhateverThePartsAreReadIn) {
  const CrcCase& c = GetParam();
  WrittenCheckpoint made(11);
  const TensorIndex t = made.add({.dtype = DType::int16, .shape = {97, 201}, .cut = c.cut, .parts = 2, .order = c.order, .crc32 = true});
  made.write();
  EXPECT_NO_THROW(read_in_parts(made, t, c));
  Piece& piece = made.checkpoint.pieces[made.checkpoint.tensors[t].first_piece + made.checkpoint.tensors[t].piece_count - 1];
  const std::string expected = "expected " + [&] {
    char text[9];
    std::snprintf(text, sizeof text, "%08x", piece.crc32 ^ 1);
    return std::string(text);
  }();
  piece.crc32 ^= 1;
  const Finding finding = error_of([&] { read_in_parts(made, t, c); });
  EXPECT_EQ(finding.what, "zip member checksum mismatch");
  EXPECT_EQ(finding.code, Exit::damaged);
  EXPECT_EQ(finding.where.key, "tensor0");
  EXPECT_EQ(finding.where.path, file_name(piece.source));
  EXPECT_EQ(finding.saw_text().substr(0, expected.size()), expected);
}

INSTANTIATE_TEST_SUITE_P(Cases, PieceCrc,
                         testing::Values(CrcCase{"Whole", Cut::whole, Order::row_major, 1, 1},
                                         CrcCase{"Rows", Cut::rows, Order::row_major, 1, 1},
                                         CrcCase{"RowsInRanges", Cut::rows, Order::row_major, 1, 7},
                                         CrcCase{"Columns", Cut::columns, Order::row_major, 1, 5},
                                         CrcCase{"RowsAsColumns", Cut::rows, Order::row_major, 4, 2},
                                         CrcCase{"Transposed", Cut::whole, Order::transposed, 1, 3},
                                         CrcCase{"Padded", Cut::rows, Order::padded, 1, 3}),
                         [](const testing::TestParamInfo<CrcCase>& i) { return std::string(i.param.name); });

TEST(PieceCrcs, RangesInAnyOrderAreCombined) {
  WrittenCheckpoint made(12);
  const TensorIndex t = made.add({.dtype = DType::uint8, .shape = {1000}, .crc32 = true});
  made.write();
  const std::string& bytes = made.content[t];
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> cuts = {0, 1000};
    for (int i = 0; i < 9; ++i) cuts.push_back(made.random() % 1001);
    std::sort(cuts.begin(), cuts.end());
    std::vector<PieceRange> ranges;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      ranges.push_back({0, cuts[i], cuts[i + 1] - cuts[i], crc32(as_bytes(bytes).subspan(cuts[i], cuts[i + 1] - cuts[i]))});
    }
    std::shuffle(ranges.begin(), ranges.end(), made.random);
    PieceCrcs crcs(made.checkpoint);
    for (const PieceRange& range : ranges) EXPECT_TRUE(crcs.add(range));
    EXPECT_TRUE(crcs.settled(0));
    PieceCrcs wrong(made.checkpoint);
    ranges[made.random() % ranges.size()].crc32 ^= 0x80;
    bool empty_was_wrong = false;   // an empty range's CRC-32 counts for nothing
    for (const PieceRange& range : ranges) empty_was_wrong |= range.length == 0 && range.crc32 != 0;
    if (empty_was_wrong) continue;
    EXPECT_THROW(for (const PieceRange& range : ranges) wrong.add(range), Error);
  }
  PieceCrcs crcs(made.checkpoint);
  EXPECT_TRUE(crcs.add({0, 0, 500, 1}));
  EXPECT_FALSE(crcs.add({0, 499, 2, 1}));
  EXPECT_TRUE(crcs.claim(0));
  EXPECT_FALSE(crcs.claim(0));
}

// ---- what cannot be read

TEST(Gather, HolesOverlapsAndOtherDTypesAreErrors) {
  WrittenCheckpoint made(13, 1);
  const TensorIndex t = made.add({.shape = {8, 8}, .cut = Cut::rows, .parts = 4});
  const TensorIndex u = made.add({.shape = {8, 8}, .cut = Cut::rows, .parts = 4});
  const TensorIndex v = made.add({.dtype = DType::int32, .shape = {8}});
  made.write();
  Checkpoint& c = made.checkpoint;
  c.tensors[t].piece_count = 3;
  c.pieces[c.tensors[u].first_piece + 1].box.size = c.arena->store(std::vector<int64_t>{3, 8});
  c.tensors[v].dtype = DType::float32;
  Gatherer gatherer(c, 1 << 20, nullptr);
  const auto read = [&](TensorIndex i) {
    const Box whole = whole_box(*c.arena, c.tensors[i].shape);
    return error_of([&] { read_text(gatherer, i, whole, 0, made.content[i].size()); });
  };
  EXPECT_EQ(read(t).what, "tensor has a hole");
  EXPECT_EQ(read(t).where.key, "tensor0");
  EXPECT_EQ(read(u).what, "pieces of a tensor overlap");
  EXPECT_EQ(read(v).what, "no conversion between these dtypes");
}

TEST(Gather, CancelStopsIt) {
  WrittenCheckpoint made(14);
  const TensorIndex t = made.add({.shape = {1000, 1000}});
  made.write();
  const std::atomic<bool> cancel = true;
  Gatherer gatherer(made.checkpoint, 1 << 20, &cancel);
  const Box whole = whole_box(*made.checkpoint.arena, made.checkpoint.tensors[t].shape);
  EXPECT_EQ(error_of([&] { read_text(gatherer, t, whole, 0, 4'000'000); }).code, Exit::interrupted);
}

TEST(Gather, CastsAreSummedOnBothSides) {
  WrittenCheckpoint made(15);
  const TensorIndex t = made.add({.dtype = DType::float32, .shape = {300, 700}, .cut = Cut::columns, .parts = 5});
  made.write();
  made.checkpoint.tensors[t].dtype = DType::bfloat16;
  std::string expected(made.content[t].size() / 2, '\0');
  const CastCounts counts = cast(DType::float32, DType::bfloat16, as_bytes(made.content[t]), std::as_writable_bytes(std::span(expected)));
  EXPECT_GT(counts.changed, 0u);
  Gatherer gatherer(made.checkpoint, 1 << 20, nullptr);
  uint64_t source = 0, target = 0;
  CastCounts found;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto [begin, columns] = chunk_extent(700, 2, rank);
    const std::vector<int64_t> offset = {0, begin}, size = {300, columns};
    const uint64_t bytes = count(Box{offset, size}) * 2;
    std::string got;
    for (uint64_t from = 0; from < bytes; from += 100'002) {
      GatherResult result;
      got += read_text(gatherer, t, {offset, size}, from, std::min(bytes, from + 100'002), &result, {true, true});
      source ^= result.source_crc64;
      target ^= result.crc64;
      found += result.casts;
    }
    for (int64_t row = 0; row < 300; ++row) {
      EXPECT_EQ(got.substr(static_cast<size_t>(row * columns) * 2, static_cast<size_t>(columns) * 2),
                expected.substr(static_cast<size_t>(row * 700 + begin) * 2, static_cast<size_t>(columns) * 2));
    }
  }
  EXPECT_EQ(found, counts);
  EXPECT_EQ(crc64_finish(source, made.content[t].size()), crc64(as_bytes(made.content[t])));
  EXPECT_EQ(crc64_finish(target, expected.size()), crc64(as_bytes(expected)));
}

}  // namespace
}  // namespace fsdpctl
