#include "tests/support/slow_reference.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <vector>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

// Flips the sign bit of each number of a floating or complex element; two's complement for integers.
void negate(DType dtype, std::span<char> element) {
  if (dtype_kind(dtype) == DTypeKind::integer) {
    unsigned carry = 1;
    for (char& c : element) {
      carry += static_cast<uint8_t>(~static_cast<uint8_t>(c));
      c = static_cast<char>(carry & 0xFF);
      carry >>= 8;
    }
    return;
  }
  const uint32_t part = swap_size(dtype);
  for (size_t i = part - 1; i < element.size(); i += part) element[i] = static_cast<char>(element[i] ^ 0x80);
}

void read_piece(const Checkpoint& checkpoint, const Piece& piece, Dims shape, std::string& out) {
  const uint32_t item = item_size(piece.stored);
  std::vector<int64_t> row_major(shape.size()), strides(piece.strides.begin(), piece.strides.end());
  row_major_strides(shape, row_major);
  if (strides.empty()) {
    strides.resize(shape.size());
    row_major_strides(piece.box.size, strides);
  }
  std::vector<int64_t> at(shape.size());
  std::string element(item, '\0');
  for (uint64_t n = count(piece.box); n > 0; --n) {
    uint64_t from = piece.offset, to = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      from += static_cast<uint64_t>(at[d] * strides[d]) * item;
      to += static_cast<uint64_t>((piece.box.offset[d] + at[d]) * row_major[d]) * item;
    }
    checkpoint.source->read(piece.source, from, std::as_writable_bytes(std::span(element)));
    if (piece.swap) {
      const uint32_t part = swap_size(piece.stored);
      for (auto p = element.begin(); p != element.end(); p += part) std::reverse(p, p + part);
    }
    if (piece.conj) negate(piece.stored, std::span(element).subspan(item / 2));
    if (piece.neg) negate(piece.stored, element);
    out.replace(to, item, element);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < piece.box.size[d]) break;
      at[d] = 0;
    }
  }
}

class Crcs : public ItemCrcs {
 public:
  uint32_t crc32(uint64_t item) const override { return crcs.at(item); }
  std::map<uint64_t, uint32_t> crcs;
};

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

std::string box_bytes(const Checkpoint& checkpoint, const Segment& segment) {
  const TensorInfo& info = checkpoint.tensors[segment.tensor];
  require(contains(info.shape, segment.box), "box lies outside its tensor");
  require(count(segment.box) * item_size(info.dtype) == segment.length, "segment has another length than its box");
  const std::string whole = slow_read(checkpoint, segment.tensor);
  std::vector<int64_t> strides(info.shape.size()), at(info.shape.size());
  row_major_strides(info.shape, strides);
  const uint32_t item = item_size(info.dtype);
  std::string bytes;
  for (uint64_t n = count(segment.box); n > 0; --n) {
    uint64_t from = 0;
    for (size_t d = 0; d < at.size(); ++d) from += static_cast<uint64_t>((segment.box.offset[d] + at[d]) * strides[d]) * item;
    bytes.append(whole, from, item);
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < segment.box.size[d]) break;
      at[d] = 0;
    }
  }
  return bytes;
}

}  // namespace

std::string slow_read(const Checkpoint& checkpoint, TensorIndex t) {
  std::string out(checkpoint.bytes_of(t), '\0');
  const Piece* before = nullptr;
  for (const Piece& piece : checkpoint.pieces_of(t)) {
    if (before == nullptr || !equal(before->box, piece.box)) read_piece(checkpoint, piece, checkpoint.tensors[t].shape, out);
    before = &piece;
  }
  return out;
}

std::string slow_write(const Checkpoint& checkpoint, const FileLayout& layout) {
  std::string out(layout.size(), '\0');
  Crcs crcs;
  std::vector<std::pair<uint64_t, Segment>> late;
  SegmentList list;
  uint64_t end = 0;
  for (uint64_t item = 0; item < layout.item_count(); ++item) {
    require(layout.item_offset(item) == end, "items have gaps");
    layout.segments(item, list);
    for (const Segment& s : list.segments) {
      require(s.offset == end && s.length <= out.size() - end, "segments have gaps");
      end += s.length;
      std::string bytes;
      if (s.kind == Segment::Kind::rendered_late) {
        late.push_back({item, s});
        continue;
      } else if (s.kind == Segment::Kind::tensor) {
        bytes = box_bytes(checkpoint, s);
        crcs.crcs[item] = crc32(std::as_bytes(std::span(bytes)));
      } else if (s.kind == Segment::Kind::rendered) {
        layout.render(item, s, nullptr, bytes);
      } else {
        bytes.assign(s.length, '\0');
      }
      require(bytes.size() == s.length, "rendered bytes have another length");
      out.replace(s.offset, s.length, bytes);
    }
  }
  require(end == out.size() && layout.item_offset(layout.item_count()) == end, "items end before the file does");
  for (const auto& [item, s] : late) {
    std::string bytes;
    layout.render(item, s, &crcs, bytes);
    require(bytes.size() == s.length, "late bytes have another length");
    out.replace(s.offset, s.length, bytes);
  }
  return out;
}

std::string slow_sha256(const Checkpoint& checkpoint, TensorIndex t) {
  Sha256 sum;
  const std::string bytes = slow_read(checkpoint, t);
  sum.update(std::as_bytes(std::span(bytes)));
  return sum.hex();
}

void slow_write(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory) {
  for (const auto& layout : plan) {
    const std::filesystem::path path = std::filesystem::path(directory) / layout->path();
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << slow_write(checkpoint, *layout);
  }
}

}  // namespace fsdpctl
