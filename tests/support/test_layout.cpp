#include "tests/support/test_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/cast.h"
#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kChecksumText = 9;   // "%08x\n"

// Text that differs from item to item.
std::string header_text(uint64_t item, uint64_t length) {
  std::string text;
  while (text.size() < length) text += fmt::format("<item {} at {}>", item, text.size());
  text.resize(length);
  return text;
}

}  // namespace

TestLayout::TestLayout(const WrittenCheckpoint& made, std::string path, std::vector<TestItem> items, bool checksums)
    : FileLayout(std::move(path)), made_(made), items_(std::move(items)), checksums_(checksums) {
  offsets_.push_back(0);
  for (const TestItem& item : items_) {
    offsets_.push_back(offsets_.back() + item.header + item.zeros + tensor_bytes(item) + (checksums ? kChecksumText : 0));
  }
  offsets_.push_back(offsets_.back() + (checksums ? kChecksumText * items_.size() : 3));
}

uint64_t TestLayout::tensor_bytes(const TestItem& item) const {
  return count(item.box) * item_size(made_.checkpoint.tensors[item.tensor].dtype);
}

void TestLayout::segments(uint64_t item, SegmentList& out) const {
  out.segments.clear();
  uint64_t at = offsets_[item];
  const auto add = [&](Segment::Kind kind, uint64_t length) {
    Segment segment;
    segment.kind = kind;
    segment.offset = at;
    segment.length = length;
    if (kind == Segment::Kind::tensor) {
      segment.tensor = items_[item].tensor;
      segment.box = items_[item].box;
    }
    if (length > 0) out.segments.push_back(segment);
    at += length;
  };
  if (item == items_.size()) return add(checksums_ ? Segment::Kind::rendered_late : Segment::Kind::rendered, size() - at);
  add(Segment::Kind::rendered, items_[item].header);
  add(Segment::Kind::zero, items_[item].zeros);
  add(Segment::Kind::tensor, tensor_bytes(items_[item]));
  if (checksums_) add(Segment::Kind::rendered_late, kChecksumText);
}

void TestLayout::render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const {
  if (item == items_.size() && !checksums_) {
    out += "end";
  } else if (item == items_.size()) {
    for (uint64_t i = 0; i < items_.size(); ++i) out += fmt::format("{:08x}\n", crcs->crc32(i));
  } else if (segment.kind == Segment::Kind::rendered_late) {
    out += fmt::format("{:08x}\n", crcs->crc32(item));
  } else {
    out += header_text(item, segment.length);
  }
}

std::string TestLayout::expected() const {
  std::string text, directory;
  for (uint64_t i = 0; i < items_.size(); ++i) {
    const TestItem& item = items_[i];
    text += header_text(i, item.header) + std::string(item.zeros, '\0');
    std::string bytes = made_.region_bytes(item.tensor, item.box);
    const TensorInfo& info = made_.checkpoint.tensors[item.tensor];
    const DType stored = made_.checkpoint.pieces_of(item.tensor).front().stored;
    if (stored != info.dtype) {
      std::string cast_bytes(tensor_bytes(item), '\0');
      cast(stored, info.dtype, as_bytes(bytes), std::as_writable_bytes(std::span(cast_bytes)));
      bytes = cast_bytes;
    }
    const std::string crc = fmt::format("{:08x}\n", crc32(as_bytes(bytes)));
    text += bytes;
    if (checksums_) text += crc;
    directory += crc;
  }
  return text + (checksums_ ? directory : "end");
}

std::vector<std::unique_ptr<TestLayout>> random_layouts(WrittenCheckpoint& made, int files, bool checksums) {
  std::vector<std::vector<TestItem>> items(static_cast<size_t>(files));
  const auto give = [&](TensorIndex t, const Box& box) {
    items[made.random() % items.size()].push_back({t, box, made.random() % 100, made.random() % 3 ? 0 : made.random() % 50});
  };
  for (TensorIndex t = 0; t < made.checkpoint.tensors.size(); ++t) {
    const Dims shape = made.checkpoint.tensors[t].shape;
    if (shape.empty() || made.random() % 2) {
      give(t, whole_box(*made.checkpoint.arena, shape));
      continue;
    }
    const size_t d = made.random() % shape.size();
    for (int rank = 0; rank < 3; ++rank) {
      const std::span<int64_t> offset = made.checkpoint.arena->dims(shape.size()), size = made.checkpoint.arena->dims(shape.size());
      std::fill(offset.begin(), offset.end(), 0);
      std::copy(shape.begin(), shape.end(), size.begin());
      std::tie(offset[d], size[d]) = chunk_extent(shape[d], 3, rank);
      give(t, {offset, size});
    }
  }
  std::vector<std::unique_ptr<TestLayout>> layouts;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string path = i % 2 ? "sub/directory/out" + std::to_string(i) : "out" + std::to_string(i);
    layouts.push_back(std::make_unique<TestLayout>(made, path, items[i], checksums));
  }
  return layouts;
}

}  // namespace fsdpctl
