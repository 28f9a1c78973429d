#include "lib/ckpt/block_filler.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/base/checksum.h"
#include "lib/ckpt/jobs.h"
#include "lib/ckpt/region_walk.h"

namespace fsdpctl {
namespace {

constexpr size_t kLargestItem = 16;   // bytes of an element

[[noreturn]] void broken(const FileLayout& layout, const char* what) {
  throw Error(Exit::failed, what).at(layout.path());
}

// What the late segments of an item with a tensor may ask for: its CRC-32.
class OneCrc final : public ItemCrcs {
 public:
  OneCrc(const FileLayout& layout, uint64_t item, uint32_t crc) : layout_(layout), item_(item), crc_(crc) {}
  uint32_t crc32(uint64_t item) const override {
    if (item != item_) broken(layout_, "layout asks for the checksum of another item");
    return crc_;
  }

 private:
  const FileLayout& layout_;
  uint64_t item_;
  uint32_t crc_;
};

}  // namespace

void segments_of(const FileLayout& layout, uint64_t item, SegmentList& list) {
  layout.segments(item, list);
  uint64_t next = layout.item_offset(item);
  for (const Segment& segment : list.segments) {
    if (segment.offset != next) broken(layout, "layout has a gap");
    next += segment.length;
  }
  if (next != layout.item_offset(item + 1)) broken(layout, "layout has a gap");
}

uint64_t item_at(const FileLayout& layout, uint64_t offset) {
  uint64_t low = 0, high = layout.item_count();
  while (low + 1 < high) {
    const uint64_t middle = low + (high - low) / 2;
    (layout.item_offset(middle) <= offset ? low : high) = middle;
  }
  return low;
}

const Segment* tensor_segment(const SegmentList& list) {
  for (const Segment& segment : list.segments) {
    if (segment.kind == Segment::Kind::tensor) return &segment;
  }
  return nullptr;
}

bool is_early(const Segment& late, const Segment* tensor) {
  if (tensor == nullptr) return false;
  const uint64_t begin = std::min(late.offset, tensor->offset);
  const uint64_t end = std::max(late.offset + late.length, tensor->offset + tensor->length);
  return begin / kBlockUnit == (std::max(end, begin + 1) - 1) / kBlockUnit;
}

void render_segment(const FileLayout& layout, uint64_t item, const Segment& segment, const ItemCrcs* crcs,
                    std::string& out) {
  const size_t before = out.size();
  layout.render(item, segment, crcs, out);
  if (out.size() - before != segment.length) broken(layout, "layout rendered another length than it promised");
}

void BlockFiller::fill(const FileLayout& layout, uint64_t offset, std::span<std::byte> bytes, JobRecord& record) {
  Block block = {layout, offset, offset + bytes.size(), bytes.data(), record};
  visit_items(block);
}

bool BlockFiller::check(const FileLayout& layout, uint64_t offset, std::span<std::byte> bytes, JobRecord& record) {
  Block block = {layout, offset, offset + bytes.size(), bytes.data(), record, /*fills=*/false};
  visit_items(block);
  return block.same;
}

void BlockFiller::visit_items(Block& block) {
  const FileLayout& layout = block.layout;
  const uint64_t items = layout.item_count();
  uint64_t item = item_at(layout, block.begin);
  for (; item < items && layout.item_offset(item) < block.end; ++item) fill_item(block, item);
  if (item == items && layout.item_offset(items) < block.end) broken(layout, "layout ends early");
}

void BlockFiller::put(Block& block, uint64_t offset, std::span<const std::byte> bytes) const {
  std::byte* there = block.memory + (offset - block.begin);
  if (block.fills) std::copy(bytes.begin(), bytes.end(), there);
  else block.same = block.same && std::equal(bytes.begin(), bytes.end(), there);
}

void BlockFiller::fill_item(Block& block, uint64_t item) {
  segments_of(block.layout, item, list_);
  const Segment* tensor = tensor_segment(list_);
  const auto meets = [&block](const Segment& s) { return s.offset < block.end && s.offset + s.length > block.begin; };
  uint32_t crc = 0;   // of the tensor segment, if it lies in this block
  if (tensor != nullptr && meets(*tensor)) crc = fill_tensor(block, item, *tensor);
  for (const Segment& segment : list_.segments) {
    if (segment.kind == Segment::Kind::tensor || !meets(segment)) continue;
    const bool late = segment.kind == Segment::Kind::rendered_late;
    if (segment.kind == Segment::Kind::rendered) {
      fill_rendered(block, item, segment);
    } else if (late && !all_late_ && is_early(segment, tensor)) {
      text_layout_ = nullptr;
      text_.clear();
      const OneCrc crcs(block.layout, item, crc);
      render_segment(block.layout, item, segment, &crcs, text_);
      put(block, segment.offset, std::as_bytes(std::span(text_)));
    } else if (block.fills || !late) {   // late ones are written again in any case
      const uint64_t from = std::max(segment.offset, block.begin), to = std::min(segment.offset + segment.length, block.end);
      std::byte* zeros = block.memory + (from - block.begin);
      if (block.fills) std::memset(zeros, 0, to - from);
      else block.same = block.same && std::all_of(zeros, zeros + (to - from), [](std::byte b) { return b == std::byte{0}; });
    }
  }
}

void BlockFiller::fill_rendered(Block& block, uint64_t item, const Segment& segment) {
  if (text_layout_ != &block.layout || text_item_ != item || text_offset_ != segment.offset) {
    text_layout_ = nullptr;
    text_.clear();
    render_segment(block.layout, item, segment, nullptr, text_);
    text_layout_ = &block.layout;
    text_item_ = item;
    text_offset_ = segment.offset;
  }
  const uint64_t from = std::max(segment.offset, block.begin), to = std::min(segment.offset + segment.length, block.end);
  put(block, from, std::as_bytes(std::span(text_)).subspan(from - segment.offset, to - from));
}

// Elements may lie across the ends of the block. Each is summed once: in the block where it begins.
uint32_t BlockFiller::fill_tensor(Block& block, uint64_t item, const Segment& segment) {
  const uint64_t size = item_size(checkpoint_.tensors[segment.tensor].dtype);
  if (segment.length != count(segment.box) * size) broken(block.layout, "layout gives a tensor another length");
  const uint64_t from = std::max(segment.offset, block.begin) - segment.offset;
  const uint64_t to = std::min(segment.offset + segment.length, block.end) - segment.offset;
  const uint64_t begin = (from + size - 1) / size * size, end = std::max(to / size * size, begin);
  std::byte* memory = block.memory + (segment.offset + from - block.begin);
  std::array<std::byte, kLargestItem> element;
  const std::span<std::byte> one = std::span(element).first(size);
  if (from < begin) {
    gatherer_.read(segment.tensor, segment.box, begin - size, begin, one, {false, false});
    put(block, segment.offset + from, one.subspan(size - (begin - from), std::min(begin, to) - from));
  }
  const bool wants_crc = block.layout.needs_crc32();
  const GatherResult result = take(block, segment, begin, end, {memory + (begin - from), end - begin}, {true, wants_crc});
  add_part(block, segment.tensor, end - begin, result);
  if (end < to) {
    // What is behind the block may not be written yet: this element comes from the source in either case.
    GatherResult last = gatherer_.read(segment.tensor, segment.box, end, end + size, one, {block.fills, false});
    if (!block.fills) last = take(block, segment, end, end + size, one, {});
    add_part(block, segment.tensor, size, last);
    put(block, segment.offset + end, one.first(to - end));
  }
  if (!wants_crc) return 0;
  const bool whole_elements = from == begin && end == to;
  const uint32_t crc = whole_elements ? result.crc32 : crc32({memory, to - from});
  std::vector<ItemPart>& parts = block.record.items;
  if (parts.empty() || parts.back().item != item) parts.push_back({item, 0});
  parts.back().crc32 ^= crc32_combine(crc, 0, segment.length - to);
  return crc;
}

// Bytes [begin, end) of a tensor segment, whole elements: from the source, or as they lie in `bytes` already.
GatherResult BlockFiller::take(const Block& block, const Segment& segment, uint64_t begin, uint64_t end, std::span<std::byte> bytes,
                               GatherWants wants) {
  if (block.fills) return gatherer_.read(segment.tensor, segment.box, begin, end, bytes, wants);
  GatherResult result;
  if (begin == end) return result;
  const TensorInfo& info = checkpoint_.tensors[segment.tensor];
  const uint32_t size = item_size(info.dtype);
  RunningCrc64 crc(count(info.shape) * size);
  add_elements(crc, bytes.data(), segment.box, info.shape, size, begin / size, end / size);
  result.crc64 = crc.contribution();
  if (wants.crc32) result.crc32 = crc32(bytes);
  return result;
}

void BlockFiller::add_part(const Block& block, TensorIndex t, uint64_t bytes, const GatherResult& result) {
  std::vector<TensorPart>& parts = block.record.tensors;
  if (parts.empty() || parts.back().tensor != t) parts.push_back({t, 0, 0, 0, {}});
  TensorPart& part = parts.back();
  part.bytes += bytes;
  part.source_crc64 ^= result.source_crc64;
  part.crc64 ^= result.crc64;
  part.casts += result.casts;
}

}  // namespace fsdpctl
