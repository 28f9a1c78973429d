#include "tests/support/slow_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

// Calls visit(index) for every index of a box of this size, in row-major order.
template <class Visit>
void for_each_index(Dims size, const Visit& visit) {
  if (count(size) == 0) return;
  std::vector<int64_t> index(size.size(), 0);
  while (true) {
    visit(index);
    size_t d = size.size();
    while (d > 0 && ++index[d - 1] == size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// Elements from the start of a tensor of row-major strides, or of a piece's own.
uint64_t element_of(Dims strides, std::span<const int64_t> index) {
  int64_t element = 0;
  for (size_t d = 0; d < index.size(); ++d) element += strides[d] * index[d];
  return static_cast<uint64_t>(element);
}

void negate_element(std::string& element, size_t part) {   // flips the sign bit of the part-th number in it
  element[part] = static_cast<char>(element[part] ^ '\x80');
}

std::string box_bytes(const Checkpoint& checkpoint, TensorIndex tensor, const Box& box) {
  const std::string whole = slow_read(checkpoint, tensor);
  const TensorInfo& info = checkpoint.tensors[tensor];
  const size_t item = item_size(info.dtype);
  std::vector<int64_t> strides(info.shape.size());
  row_major_strides(info.shape, strides);
  std::string bytes;
  for_each_index(box.size, [&](const std::vector<int64_t>& index) {
    std::vector<int64_t> at(index);
    for (size_t d = 0; d < at.size(); ++d) at[d] += box.offset[d];
    bytes.append(whole, element_of(strides, at) * item, item);
  });
  return bytes;
}

class Crcs : public ItemCrcs {
 public:
  uint32_t crc32(uint64_t item) const override { return of_item.at(item); }
  std::map<uint64_t, uint32_t> of_item;
};

std::string segment_bytes(const Checkpoint& checkpoint, const FileLayout& layout, uint64_t item, const Segment& segment, Crcs& crcs) {
  std::string bytes;
  switch (segment.kind) {
    case Segment::Kind::zero: bytes.assign(segment.length, '\0'); break;
    case Segment::Kind::rendered: layout.render(item, segment, nullptr, bytes); break;
    case Segment::Kind::rendered_late: layout.render(item, segment, &crcs, bytes); break;
    case Segment::Kind::tensor:
      bytes = box_bytes(checkpoint, segment.tensor, segment.box);
      crcs.of_item[item] = crc32(std::as_bytes(std::span(bytes)));
      break;
  }
  EXPECT_EQ(bytes.size(), segment.length) << layout.path() << " item " << item;
  return bytes;
}

}  // namespace

std::string slow_read(const Checkpoint& checkpoint, TensorIndex tensor) {
  const TensorInfo& info = checkpoint.tensors[tensor];
  const size_t item = item_size(info.dtype);
  std::vector<int64_t> strides(info.shape.size());
  row_major_strides(info.shape, strides);
  std::string bytes(count(info.shape) * item, '\0');
  for (const Piece& piece : checkpoint.pieces_of(tensor)) {
    EXPECT_EQ(piece.encoding, Encoding::raw);
    std::vector<int64_t> own(piece.box.size.size());
    if (piece.strides.empty()) row_major_strides(piece.box.size, own);
    else own.assign(piece.strides.begin(), piece.strides.end());
    for_each_index(piece.box.size, [&](const std::vector<int64_t>& index) {
      std::string element(item, '\0');
      checkpoint.source->read(piece.source, piece.offset + element_of(own, index) * item, std::as_writable_bytes(std::span(element)));
      const size_t part = swap_size(info.dtype);
      for (size_t at = 0; piece.swap && at < item; at += part) std::reverse(element.begin() + static_cast<long>(at), element.begin() + static_cast<long>(at + part));
      if (piece.conj) negate_element(element, item - 1);
      for (size_t at = part; piece.neg && at <= item; at += part) negate_element(element, at - 1);
      std::vector<int64_t> global(index);
      for (size_t d = 0; d < global.size(); ++d) global[d] += piece.box.offset[d];
      bytes.replace(element_of(strides, global) * item, item, element);
    });
  }
  return bytes;
}

std::string slow_sha256(const Checkpoint& checkpoint, TensorIndex tensor) {
  const std::string bytes = slow_read(checkpoint, tensor);
  Sha256 sum;
  sum.update(std::as_bytes(std::span(bytes)));
  return sum.hex();
}

void slow_write(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory) {
  for (const auto& layout : plan) {
    const std::filesystem::path path = std::filesystem::path(directory) / layout->path();
    std::filesystem::create_directories(path.parent_path());
    Crcs crcs;
    std::vector<std::pair<uint64_t, Segment>> late;
    SegmentList list;
    std::string file;
    for (uint64_t item = 0; item < layout->item_count(); ++item) {
      EXPECT_EQ(layout->item_offset(item), file.size()) << layout->path() << " item " << item;
      layout->segments(item, list);
      for (const Segment& segment : list.segments) {
        EXPECT_EQ(segment.offset, file.size()) << layout->path() << " item " << item;
        if (segment.kind == Segment::Kind::rendered_late) {
          late.emplace_back(item, segment);
          file.append(segment.length, '\0');
        } else {
          file += segment_bytes(checkpoint, *layout, item, segment, crcs);
        }
      }
    }
    for (const auto& [item, segment] : late) {
      file.replace(segment.offset, segment.length, segment_bytes(checkpoint, *layout, item, segment, crcs));
    }
    EXPECT_EQ(layout->size(), file.size()) << layout->path();
    EXPECT_EQ(layout->item_offset(layout->item_count()), file.size()) << layout->path();
    std::ofstream(path, std::ios::binary) << file;
  }
}

}  // namespace fsdpctl
