// One GPU thread's part of the optimizers.
#pragma once

#include "kernels/adam_element.h"
#include "kernels/grid_table.h"
#include "kernels/sgd_element.h"

namespace fsdpctl::kernels {

template <class Grid>
FSDPCTL_SHARED void adam_thread(const Grid& grid, const TiledTable<AdamEntry>& table, const AdamScalars* scalars) {
  constexpr FloatType f32 = FloatType::float32;
  for (uint64_t index = grid.block; index < table.tiles; index += grid.blocks) {
    const AdamEntry entry = table.rows[table.tile_row[index]];
    const AdamScalars s = scalars[entry.scalars];
    for_groups(grid, tile_at(table, index, entry.count), [&](uint64_t at, uint32_t n) {
      float g[kGroup], w[kGroup], m[kGroup], v[kGroup];
      load_group(entry.gradient, entry.gradient_type, at, n, g);
      load_group(entry.master, f32, at, n, w);
      load_group(entry.moment1, f32, at, n, m);
      load_group(entry.moment2, f32, at, n, v);
      for (uint32_t i = 0; i < kGroup; ++i) adam_element(s, g[i], w[i], m[i], v[i]);
      store_group(entry.master, f32, at, n, w);
      store_group(entry.moment1, f32, at, n, m);
      store_group(entry.moment2, f32, at, n, v);
      if (entry.parameter != nullptr) store_group(entry.parameter, entry.parameter_type, at, n, w);
    });
  }
}

template <class Grid>
FSDPCTL_SHARED void sgd_thread(const Grid& grid, const TiledTable<SgdEntry>& table, const SgdScalars* scalars) {
  constexpr FloatType f32 = FloatType::float32;
  for (uint64_t index = grid.block; index < table.tiles; index += grid.blocks) {
    const SgdEntry entry = table.rows[table.tile_row[index]];
    const SgdScalars s = scalars[entry.scalars];
    for_groups(grid, tile_at(table, index, entry.count), [&](uint64_t at, uint32_t n) {
      float g[kGroup], w[kGroup], m[kGroup];
      load_group(entry.gradient, entry.gradient_type, at, n, g);
      load_group(entry.master, f32, at, n, w);
      if (s.momentum != 0.0f) {
        load_group(entry.momentum, f32, at, n, m);
        for (uint32_t i = 0; i < kGroup; ++i) sgd_element(s, g[i], w[i], m[i]);
        store_group(entry.momentum, f32, at, n, m);
      } else {
        for (uint32_t i = 0; i < kGroup; ++i) sgd_element_without_momentum(s, g[i], w[i]);
      }
      store_group(entry.master, f32, at, n, w);
      if (entry.parameter != nullptr) store_group(entry.parameter, entry.parameter_type, at, n, w);
    });
  }
}

}  // namespace fsdpctl::kernels
