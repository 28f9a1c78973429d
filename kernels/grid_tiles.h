// Cutting a table into tiles (grid_table.h), on the host. Header only: the plug-in uses it without our libraries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/grid_table.h"
#include "kernels/table.h"

namespace fsdpctl::kernels {

inline uint64_t elements_of(const RestoreEntry& entry) {
  return entry.size[0] * entry.size[1] * entry.size[2] * entry.size[3];
}
template <class Entry>
uint64_t elements_of(const Entry& entry) { return entry.count; }

struct TileMap {
  std::vector<uint32_t> tile_row;
  std::vector<uint64_t> first_tile;
  uint64_t tiles() const { return tile_row.size(); }
};

template <class Entry>
TileMap tiles_of(std::span<const Entry> rows) {
  TileMap map;
  for (size_t row = 0; row < rows.size(); ++row) {
    map.first_tile.push_back(map.tile_row.size());
    const uint64_t tiles = (elements_of(rows[row]) + kTile - 1) / kTile;
    map.tile_row.insert(map.tile_row.end(), tiles, static_cast<uint32_t>(row));
  }
  return map;
}

// Rows of unscale_norm in the order of their results.
struct SortedGradients {
  std::vector<GradientEntry> rows;
  TileMap map;
  std::vector<uint64_t> result_tile;   // results + 1
};

inline SortedGradients sort_gradients(std::span<const GradientEntry> table, size_t results) {
  SortedGradients sorted;
  sorted.rows.assign(table.begin(), table.end());
  std::stable_sort(sorted.rows.begin(), sorted.rows.end(),
                   [](const GradientEntry& a, const GradientEntry& b) { return a.result < b.result; });
  sorted.map = tiles_of(std::span<const GradientEntry>(sorted.rows));
  sorted.result_tile.assign(results + 1, 0);
  for (const uint32_t row : sorted.map.tile_row) ++sorted.result_tile[sorted.rows[row].result + 1];
  std::partial_sum(sorted.result_tile.begin(), sorted.result_tile.end(), sorted.result_tile.begin());
  return sorted;
}

}  // namespace fsdpctl::kernels
