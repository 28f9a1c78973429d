#include "lib/ckpt/strided_copy.h"

#include <algorithm>
#include <cstring>

namespace fsdpctl {
namespace {

struct Item16 {
  uint64_t half[2];
};

template <class T>
void copy_one(std::byte* target, const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  std::memcpy(target, &value, sizeof value);
}

template <class T>
void copy_row(std::byte* target, const std::byte* source, const Axis& row) {
  for (int64_t i = 0; i < row.count; ++i) copy_one<T>(target + i * row.target, source + i * row.source);
}

// Two axes in tiles that fit the first-level cache on both sides, whatever the distances.
template <class T>
void copy_plane(std::byte* target, const std::byte* source, const Axis& row, const Axis& column) {
  constexpr int64_t kTile = 128 / sizeof(T) < 16 ? 16 : 128 / sizeof(T);
  for (int64_t c = 0; c < column.count; c += kTile) {
    const int64_t c_end = std::min(column.count, c + kTile);
    for (int64_t r = 0; r < row.count; r += kTile) {
      const Axis part = {std::min(kTile, row.count - r), row.source, row.target, 0};
      for (int64_t k = c; k < c_end; ++k) {
        copy_row<T>(target + k * column.target + r * row.target, source + k * column.source + r * row.source, part);
      }
    }
  }
}

// Calls copy(target, source) for each position of the axes in `outer`.
template <class Copy>
void for_each(std::byte* target, const std::byte* source, std::span<const Axis> outer, Copy copy) {
  if (outer.empty()) return copy(target, source);
  const Axis& axis = outer.back();
  for (int64_t i = 0; i < axis.count; ++i) {
    for_each(target + i * axis.target, source + i * axis.source, outer.first(outer.size() - 1), copy);
  }
}

size_t nearest(std::span<const Axis> axes, int64_t Axis::* distance) {
  size_t best = 0;
  for (size_t i = 1; i < axes.size(); ++i) {
    if (axes[i].*distance < axes[best].*distance) best = i;
  }
  return best;
}

template <class T>
void copy_items(std::byte* target, const std::byte* source, std::span<const Axis> axes) {
  if (axes.empty()) return copy_one<T>(target, source);
  const size_t row = nearest(axes, &Axis::target);
  const size_t column = nearest(axes, &Axis::source);
  Axis outer[kMaxAxes];
  size_t n = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (i != row && i != column) outer[n++] = axes[i];
  }
  const std::span<const Axis> rest(outer, n);
  if (row == column) {
    for_each(target, source, rest, [&](std::byte* to, const std::byte* from) { copy_row<T>(to, from, axes[row]); });
  } else {
    for_each(target, source, rest,
             [&](std::byte* to, const std::byte* from) { copy_plane<T>(to, from, axes[row], axes[column]); });
  }
}

void copy_by_size(std::byte* target, const std::byte* source, std::span<const Axis> axes, uint64_t item) {
  switch (item) {
    case 1: return copy_items<uint8_t>(target, source, axes);
    case 2: return copy_items<uint16_t>(target, source, axes);
    case 4: return copy_items<uint32_t>(target, source, axes);
    case 8: return copy_items<uint64_t>(target, source, axes);
    default: return copy_items<Item16>(target, source, axes);
  }
}

bool is_item_size(uint64_t bytes) { return bytes <= 16 && (bytes & (bytes - 1)) == 0; }

}  // namespace

void strided_copy(std::byte* target, const std::byte* source, std::span<const Axis> axes, uint32_t item) {
  // A run that both sides have is one large item.
  uint64_t run = item;
  size_t inner = 0;
  while (inner < axes.size() && axes[inner].source == static_cast<int64_t>(run) && axes[inner].target == axes[inner].source) {
    run *= static_cast<uint64_t>(axes[inner].count);
    ++inner;
  }
  axes = axes.subspan(inner);
  if (is_item_size(run)) return copy_by_size(target, source, axes, run);
  for_each(target, source, axes, [run](std::byte* to, const std::byte* from) { std::memcpy(to, from, run); });
}

}  // namespace fsdpctl
