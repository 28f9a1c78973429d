#include "lib/train/shard_layout.h"

#include <algorithm>

namespace fsdpctl::train {
namespace {

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Whether every run lies, gathered, where its parameter has it.
bool lies_in_place(const ShardLayout& layout) {
  return std::all_of(layout.runs.begin(), layout.runs.end(), [&](const ShardRun& run) {
    const uint64_t gathered = static_cast<uint64_t>(run.rank) * layout.shard_count + run.shard_offset;
    return run.count == 0 || gathered == layout.full_offset[run.parameter] + run.begin;
  });
}

}  // namespace

uint64_t element_count(const Shape& shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

std::span<const ShardRun> ShardLayout::runs_of(int rank) const {
  const size_t parameters = full_offset.size();
  return std::span(runs).subspan(static_cast<size_t>(rank) * parameters, parameters);
}

ShardLayout flat_layout(std::span<const Shape> shapes, int ranks, uint64_t alignment) {
  ShardLayout layout;
  layout.ranks = ranks;
  for (const Shape& shape : shapes) {
    layout.full_count = round_up(layout.full_count, alignment);
    layout.full_offset.push_back(layout.full_count);
    layout.full_count += element_count(shape);
  }
  layout.full_count = round_up(layout.full_count, static_cast<uint64_t>(ranks));
  layout.shard_count = layout.full_count / static_cast<uint64_t>(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const uint64_t first = static_cast<uint64_t>(rank) * layout.shard_count, last = first + layout.shard_count;
    for (uint32_t p = 0; p < shapes.size(); ++p) {
      const uint64_t offset = layout.full_offset[p], count = element_count(shapes[p]);
      const uint64_t begin = std::clamp(first, offset, offset + count), end = std::clamp(last, offset, offset + count);
      layout.runs.push_back({rank, p, begin - offset, end - begin, end > begin ? begin - first : 0});
    }
  }
  layout.gathered_is_full = lies_in_place(layout);
  return layout;
}

ShardLayout per_parameter_layout(std::span<const Shape> shapes, int ranks) {
  ShardLayout layout;
  layout.ranks = ranks;
  const auto parts = static_cast<uint64_t>(ranks);
  std::vector<uint64_t> shard_offset;
  for (const Shape& shape : shapes) {
    const uint64_t rows = shape.empty() ? 1 : static_cast<uint64_t>(shape[0]);
    const uint64_t row = rows == 0 ? 0 : element_count(shape) / rows;
    layout.full_offset.push_back(layout.full_count);
    layout.full_count += rows * row;
    shard_offset.push_back(layout.shard_count);
    layout.shard_count += (rows + parts - 1) / parts * row;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (uint32_t p = 0; p < shapes.size(); ++p) {
      const uint64_t rows = shapes[p].empty() ? 1 : static_cast<uint64_t>(shapes[p][0]);
      const uint64_t row = rows == 0 ? 0 : element_count(shapes[p]) / rows;
      const uint64_t chunk = (rows + parts - 1) / parts;
      const uint64_t begin = std::min(static_cast<uint64_t>(rank) * chunk, rows), end = std::min(begin + chunk, rows);
      layout.runs.push_back({rank, p, begin * row, (end - begin) * row, shard_offset[p]});
    }
  }
  layout.gathered_is_full = lies_in_place(layout);
  return layout;
}

}  // namespace fsdpctl::train
