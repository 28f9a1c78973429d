// Single-tensor items: the fast way against the long way, and our framing against PyTorch's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <optional>

#include "formats/codec/torch_archive.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

Bytes bytes_of_text(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Outcome {
  std::optional<TensorItem> item;   // nothing: an Error
  int reads = 0;
};

// `ends`: with the item's ends at hand; otherwise the long way.
Outcome read_item(const std::string& bytes, bool ends, uint64_t base = 0) {
  Outcome outcome;
  const ZipRead read = [&](uint64_t offset, std::span<std::byte> out) {
    ++outcome.reads;
    ASSERT_LE(offset, bytes.size());
    ASSERT_LE(out.size(), bytes.size() - offset);
    std::copy_n(bytes_of_text(bytes).data() + offset, out.size(), out.data());
  };
  const Bytes all = bytes_of_text(bytes);
  const Bytes head = ends ? all.first(std::min<size_t>(all.size(), kItemHead)) : Bytes();
  const Bytes tail = ends ? all.last(std::min<size_t>(all.size(), kItemTail)) : Bytes();
  try {
    outcome.item = read_tensor_item(head, tail, bytes.size(), read, "__0_0.distcp", base);
  } catch (const Error& e) {
    EXPECT_TRUE(e.code() == Exit::damaged || e.code() == Exit::unsupported) << e.what();
  }
  return outcome;
}

void expect_equal(const TensorItem& a, const TensorItem& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.strides, b.strides);
  EXPECT_EQ(a.data_offset, b.data_offset);
  EXPECT_EQ(a.data_length, b.data_length);
  EXPECT_EQ(a.swap, b.swap);
  EXPECT_EQ(a.conj, b.conj);
  EXPECT_EQ(a.neg, b.neg);
  EXPECT_EQ(a.has_crc32, b.has_crc32);
  EXPECT_EQ(a.crc32, b.crc32);
}

std::string make_item(DType dtype, const std::vector<int64_t>& shape, char fill = 'x') {
  const TensorItemFrame frame = frame_tensor_item(dtype, shape);
  std::string bytes, data(frame.data, fill), suffix;
  write_tensor_item_prefix(dtype, shape, bytes);
  EXPECT_EQ(bytes.size(), frame.prefix);
  EXPECT_EQ(frame.prefix % 64, 0u);
  bytes += data;
  write_tensor_item_suffix(dtype, shape, crc32(bytes_of_text(data)), suffix);
  EXPECT_EQ(suffix.size(), frame.suffix);
  return bytes + suffix;
}

const std::vector<std::vector<int64_t>> kShapes = {{},        {1},          {0},          {3},       {255},          {256},
                                                   {65536},   {2, 3},       {4, 0, 2},    {5, 6, 7}, {2, 2, 2, 2},   {70000, 1},
                                                   {1, 300},  {1, 1, 1, 1}, {0, 1 << 30}, {300, 300}, {2, 1, 2, 1, 2, 1, 2}};

TEST(TorchItem, ReadsBackWhatItFrames) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (dtype_kind(dtype) == DTypeKind::quantized) continue;
    for (const auto& shape : kShapes) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + dims_text(shape));
      const std::string bytes = make_item(dtype, shape);
      const Outcome fast = read_item(bytes, true), slow = read_item(bytes, false);
      ASSERT_TRUE(fast.item && slow.item);
      EXPECT_EQ(fast.reads, 0);
      EXPECT_GT(slow.reads, 0);
      expect_equal(*fast.item, *slow.item);
      EXPECT_EQ(fast.item->dtype, dtype);
      EXPECT_EQ(fast.item->shape, shape);
      EXPECT_TRUE(fast.item->strides.empty());
      EXPECT_EQ(fast.item->data_offset, frame_tensor_item(dtype, shape).prefix);
      EXPECT_EQ(fast.item->data_length, count(shape) * item_size(dtype));
      EXPECT_EQ(fast.item->has_crc32, count(shape) > 0);
    }
  }
}

// Whatever bit is flipped: both ways see the same item, or both refuse.
TEST(TorchItem, BothWaysAgreeOnEveryFlippedBit) {
  for (const std::string& good : {make_item(DType::float32, {2, 3}), make_item(DType::float8_e5m2, {300})}) {
    int refused = 0;
    for (size_t i = 0; i < good.size() * 8; ++i) {
      std::string bytes = good;
      bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
      const Outcome fast = read_item(bytes, true), slow = read_item(bytes, false);
      ASSERT_EQ(fast.item.has_value(), slow.item.has_value()) << "bit " << i;
      if (fast.item) expect_equal(*fast.item, *slow.item);
      else ++refused;
      if (testing::Test::HasFailure()) FAIL() << "bit " << i;
    }
    EXPECT_GT(refused, 1000);
  }
}

// The same with checksums that were not computed: then nothing but the structure tells.
TEST(TorchItem, BothWaysAgreeWithoutChecksums) {
  std::string good = make_item(DType::int64, {3, 4});
  for (size_t at = good.find("PK\1\2"); at != std::string::npos; at = good.find("PK\1\2", at + 4)) good.replace(at + 16, 4, 4, '\0');
  int read = 0;
  for (size_t i = 0; i < good.size() * 8; ++i) {
    std::string bytes = good;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ (1 << (i % 8)));
    const Outcome fast = read_item(bytes, true), slow = read_item(bytes, false);
    ASSERT_EQ(fast.item.has_value(), slow.item.has_value()) << "bit " << i;
    if (fast.item) expect_equal(*fast.item, *slow.item), ++read;
    if (testing::Test::HasFailure()) FAIL() << "bit " << i;
  }
  EXPECT_GT(read, 1000);
}

TEST(TorchItem, EveryTruncationIsRefused) {
  const std::string good = make_item(DType::float32, {2, 3});
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(read_item(good.substr(0, n), true).item) << n;
}

TEST(TorchItem, BigItemsNeedOnlyTheirEnds) {
  const std::string bytes = make_item(DType::float32, {100000});
  const Outcome fast = read_item(bytes, true);
  ASSERT_TRUE(fast.item);
  EXPECT_EQ(fast.reads, 0);
}

// Items of real shards: they follow each other without gaps, each ending with an end record.
std::vector<std::string> items_of(const std::string& path) {
  const std::string all = get_file(path);
  std::vector<std::string> items;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = all.find("PK\5\6", begin);
    while (end != std::string::npos && end + 22 < all.size() && all.compare(end + 22, 4, "PK\3\4") != 0) end = all.find("PK\5\6", end + 4);
    if (end == std::string::npos) break;
    items.push_back(all.substr(begin, end + 22 - begin));
    begin = end + 22;
  }
  return items;
}

// Not damaged: PyTorch saves quantised tensors this way, but their quantiser has no place in any other format.
TEST(TorchItem, SpecialTensorsAreRefusedByTheirKind) {
  const std::string bytes = get_file(test_data("dcp-items/quantized.pt"));
  const ZipRead read = [&](uint64_t offset, std::span<std::byte> out) { std::memcpy(out.data(), bytes.data() + offset, out.size()); };
  const Finding f = error_of([&] { read_tensor_item({}, {}, bytes.size(), read, "__0_0.distcp", 0); });
  EXPECT_EQ(f.code, Exit::unsupported);
  EXPECT_EQ(f.what, "item is a special tensor, not a plain one");
  EXPECT_EQ(f.found, "torch._utils._rebuild_qtensor");
}

TEST(TorchItem, BothWaysAgreeOnRealItems) {
  if (shared_fixtures().empty()) GTEST_SKIP() << "no fixtures beside the repository";
  size_t tensors = 0, others = 0, fast_ones = 0;
  for (const char* version : {"2.4.1", "2.9.1", "2.13.0"}) {
    for (const auto& entry : fs::recursive_directory_iterator(shared_fixtures() + "/" + version)) {
      if (entry.path().extension() != ".distcp" || entry.path().string().find("zstd") != std::string::npos) continue;
      for (const std::string& bytes : items_of(entry.path())) {
        SCOPED_TRACE(entry.path());
        const Outcome fast = read_item(bytes, true, 5000), slow = read_item(bytes, false, 5000);
        ASSERT_EQ(fast.item.has_value(), slow.item.has_value());
        if (fast.item) expect_equal(*fast.item, *slow.item), ++tensors;
        else ++others;
        fast_ones += fast.reads == 0;
      }
    }
  }
  EXPECT_GT(tensors, 1000u);
  EXPECT_GT(others, 100u);
  EXPECT_EQ(fast_ones, tensors);
}

}  // namespace
}  // namespace fsdpctl
