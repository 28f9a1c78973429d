// BlockFiller: assembles any block of a file from its layout: gathers tensor segments, renders the others.
//
// Late segments wait for the CRC-32s of the file and are zeros at first, unless the item's tensor and the late segment
// lie in the same kBlockUnit of the file: then they are rendered at once (see is_early). Not thread-safe.
#pragma once

#include <span>
#include <string>

#include "lib/ckpt/gather.h"
#include "lib/ckpt/journal.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

class BlockFiller {
 public:
  // `all_late`: no late segment is rendered with its block; for blocks that may hold parts of tensors only.
  BlockFiller(const Checkpoint& checkpoint, Gatherer& gatherer, bool all_late = false)
      : checkpoint_(checkpoint), gatherer_(gatherer), all_late_(all_late) {}

  // Bytes [offset, offset + block.size()) of the file. Adds what it learns to `record`.
  void fill(const FileLayout& layout, uint64_t offset, std::span<std::byte> block, JobRecord& record);
  // The opposite: `block` was read from a file that fill() made earlier. False where anything but a tensor's bytes differs (late
  // segments aside); of those only the sums are known, and added to `record` as fill() would. The source is read for no more than
  // elements that lie across the ends of the block. Does not change the block.
  bool check(const FileLayout& layout, uint64_t offset, std::span<std::byte> block, JobRecord& record);

 private:
  struct Block {
    const FileLayout& layout;
    uint64_t begin, end;         // in the file
    std::byte* memory;
    JobRecord& record;
    bool fills = true;           // false: compares
    bool same = true;            // as far as compared
  };
  void visit_items(Block& block);
  void fill_item(Block& block, uint64_t item);
  uint32_t fill_tensor(Block& block, uint64_t item, const Segment& segment);
  void fill_rendered(Block& block, uint64_t item, const Segment& segment);
  void put(Block& block, uint64_t offset, std::span<const std::byte> bytes) const;
  GatherResult take(const Block& block, const Segment& segment, uint64_t begin, uint64_t end, std::span<std::byte> bytes, GatherWants wants);
  void add_part(const Block& block, TensorIndex t, uint64_t bytes, const GatherResult& result);

  const Checkpoint& checkpoint_;
  Gatherer& gatherer_;
  const bool all_late_;
  SegmentList list_;
  // The rendered segment that was met last: large ones reach over several blocks.
  std::string text_;
  const FileLayout* text_layout_ = nullptr;
  uint64_t text_item_ = 0, text_offset_ = 0;
};

// Segments that tile their item without gaps. Error(failed) where a layout breaks its contract.
void segments_of(const FileLayout& layout, uint64_t item, SegmentList& list);
// The tensor segment of an item, null if it has none.
const Segment* tensor_segment(const SegmentList& list);
// The last item that begins at or before `offset`.
uint64_t item_at(const FileLayout& layout, uint64_t offset);
// True for a late segment that was rendered with its block.
bool is_early(const Segment& late, const Segment* tensor);
// Appends a segment's bytes; checks their number.
void render_segment(const FileLayout& layout, uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out);

}  // namespace fsdpctl
