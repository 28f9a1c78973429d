#include "lib/ckpt/region_walk.h"

#include <array>

namespace fsdpctl {

Walk walk_of(const Box& box, Dims shape, uint32_t item) {
  Walk walk;
  walk.item = item;
  int64_t near = item, far = item, logical = 0;
  for (size_t d = shape.size(); d-- > 0;) {
    walk.push({box.size[d], near, near, far});
    logical += box.offset[d] * far;
    near *= box.size[d];
    far *= shape[d];
  }
  walk.logical = static_cast<uint64_t>(logical);
  return walk;
}

void add_elements(RunningCrc64& crc, const std::byte* memory, const Box& region, Dims shape, uint32_t item, uint64_t begin, uint64_t end) {
  Arena arena;
  std::array<int64_t, kMaxAxes> offset;
  for (const Box& box : flat_range_boxes(arena, region.size, begin, end)) {
    for (size_t d = 0; d < box.offset.size(); ++d) offset[d] = region.offset[d] + box.offset[d];
    const Walk walk = walk_of({std::span(offset).first(box.offset.size()), box.size}, shape, item);
    add_runs(crc, memory, walk.used(), item, walk.logical);
    memory += walk.bytes();
  }
}

}  // namespace fsdpctl
