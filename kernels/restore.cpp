#include "kernels/restore.h"

#include <algorithm>
#include <cstddef>

#include "kernels/kernels.h"

namespace fsdpctl::kernels {
namespace {

struct Dimension {
  uint64_t size, source_stride, target_stride;
};

// Without dimensions of one element, and with neighbours merged that are one dimension in both memories.
std::vector<Dimension> merged(std::span<const uint64_t> size, std::span<const uint64_t> source, std::span<const uint64_t> target) {
  std::vector<Dimension> dimensions;
  for (size_t d = 0; d < size.size(); ++d) {
    if (size[d] == 1) continue;
    const Dimension inner{size[d], source[d], target[d]};
    if (!dimensions.empty()) {
      Dimension& outer = dimensions.back();
      if (outer.source_stride == inner.source_stride * inner.size && outer.target_stride == inner.target_stride * inner.size) {
        outer = {outer.size * inner.size, inner.source_stride, inner.target_stride};
        continue;
      }
    }
    dimensions.push_back(inner);
  }
  return dimensions;
}

void append(std::vector<RestoreEntry>& table, std::span<const Dimension> dimensions, const std::byte* source, FloatType source_type,
            std::byte* target, FloatType target_type) {
  if (dimensions.size() > kRestoreDims) {
    const Dimension& outer = dimensions.front();
    for (uint64_t i = 0; i < outer.size; ++i) {
      append(table, dimensions.subspan(1), source + i * outer.source_stride * float_size(source_type), source_type,
             target + i * outer.target_stride * float_size(target_type), target_type);
    }
    return;
  }
  RestoreEntry entry{source, target, {1, 1, 1, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}, source_type, target_type};
  for (size_t i = 0; i < dimensions.size(); ++i) {
    const size_t d = kRestoreDims - dimensions.size() + i;
    entry.size[d] = dimensions[i].size;
    entry.source_stride[d] = dimensions[i].source_stride;
    entry.target_stride[d] = dimensions[i].target_stride;
  }
  table.push_back(entry);
}

}  // namespace

void append_box(std::vector<RestoreEntry>& table, std::span<const uint64_t> size, const RestoreSource& source,
                const RestoreTarget& target) {
  if (std::find(size.begin(), size.end(), uint64_t{0}) != size.end()) return;
  const std::vector<Dimension> dimensions = merged(size, source.stride, target.stride);
  append(table, dimensions, static_cast<const std::byte*>(source.first), source.type, static_cast<std::byte*>(target.first),
         target.type);
}

}  // namespace fsdpctl::kernels
