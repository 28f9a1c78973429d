// One GPU thread's part of cast and restore.
#pragma once

#include "kernels/cast_element.h"
#include "kernels/grid_table.h"
#include "kernels/table.h"

namespace fsdpctl::kernels {

FSDPCTL_SHARED void count_cast(float value, FloatType from, FloatType to, CastCounts& counts) {
  if (to == FloatType::float32 || from == to) return;
  const CastFlags flags = to == FloatType::float16 ? float16_flags(value, narrow_float16(value))
                                                   : bfloat16_flags(value, narrow_bfloat16(value));
  counts.overflowed += flags.overflowed;
  counts.underflowed += flags.underflowed;
}

template <class Grid>
FSDPCTL_SHARED void add_counts(const Grid& grid, const CastCounts& here, CastCounts* counts) {
  if (here.overflowed != 0) grid.add(&counts->overflowed, here.overflowed);
  if (here.underflowed != 0) grid.add(&counts->underflowed, here.underflowed);
}

// Elements of one type are moved as they are: FP32 would make signalling NaNs quiet.
FSDPCTL_SHARED void move_one(const void* from, uint64_t from_at, void* to, uint64_t to_at, FloatType type) {
  if (type == FloatType::float32) {
    static_cast<uint32_t*>(to)[to_at] = static_cast<const uint32_t*>(from)[from_at];
  } else {
    static_cast<uint16_t*>(to)[to_at] = static_cast<const uint16_t*>(from)[from_at];
  }
}

// `counts`: one per row, or null.
template <class Grid>
FSDPCTL_SHARED void cast_thread(const Grid& grid, const TiledTable<CastEntry>& table, CastCounts* counts) {
  for (uint64_t index = grid.block; index < table.tiles; index += grid.blocks) {
    const CastEntry entry = table.rows[table.tile_row[index]];
    const Tile tile = tile_at(table, index, entry.count);
    CastCounts here{0, 0};
    for_groups(grid, tile, [&](uint64_t at, uint32_t n) {
      if (entry.source_type == entry.target_type) {
        for (uint32_t i = 0; i < n; ++i) move_one(entry.source, at + i, entry.target, at + i, entry.source_type);
        return;
      }
      float values[kGroup];
      load_group(entry.source, entry.source_type, at, n, values);
      store_group(entry.target, entry.target_type, at, n, values);
      if (counts != nullptr) {
        for (uint32_t i = 0; i < kGroup; ++i) count_cast(values[i], entry.source_type, entry.target_type, here);
      }
    });
    if (counts != nullptr) add_counts(grid, here, &counts[tile.row]);
  }
}

// An element of a checkpoint's bytes, which may lie at any address.
FSDPCTL_SHARED uint32_t load_bits(const void* tensor, FloatType type, uint64_t at) {
  const uint32_t size = type == FloatType::float32 ? 4 : 2;
  const auto* bytes = static_cast<const unsigned char*>(tensor) + at * size;
  uint32_t bits = 0;
  for (uint32_t i = 0; i < size; ++i) bits |= static_cast<uint32_t>(bytes[i]) << (8 * i);
  return bits;
}

FSDPCTL_SHARED void restore_one(const RestoreEntry& entry, uint64_t element, CastCounts& here) {
  uint64_t from = 0, to = 0;
  for (int d = kRestoreDims - 1; d >= 0; --d) {
    const uint64_t index = element % entry.size[d];
    element /= entry.size[d];
    from += index * entry.source_stride[d];
    to += index * entry.target_stride[d];
  }
  const uint32_t bits = load_bits(entry.source, entry.source_type, from);
  if (entry.source_type == entry.target_type) {
    if (entry.target_type == FloatType::float32) {
      static_cast<uint32_t*>(entry.target)[to] = bits;
    } else {
      static_cast<uint16_t*>(entry.target)[to] = static_cast<uint16_t>(bits);
    }
    return;
  }
  const float value = entry.source_type == FloatType::float32 ? float_of(bits)
                                                              : widen(entry.source_type, static_cast<uint16_t>(bits));
  store_one(entry.target, entry.target_type, to, value);
  count_cast(value, entry.source_type, entry.target_type, here);
}

// Neighbouring threads take neighbouring elements, so that both sides are read and written together.
template <class Grid>
FSDPCTL_SHARED void restore_thread(const Grid& grid, const TiledTable<RestoreEntry>& table, CastCounts* counts) {
  for (uint64_t index = grid.block; index < table.tiles; index += grid.blocks) {
    const RestoreEntry entry = table.rows[table.tile_row[index]];
    const Tile tile = tile_at(table, index, entry.size[0] * entry.size[1] * entry.size[2] * entry.size[3]);
    CastCounts here{0, 0};
    for (uint64_t at = tile.begin + grid.thread; at < tile.end; at += grid.threads) restore_one(entry, at, here);
    if (counts != nullptr) add_counts(grid, here, &counts[tile.row]);
  }
}

}  // namespace fsdpctl::kernels
