#include "tests/kernels/emulated_gpu.h"

#include <cstring>
#include <new>

#include "kernels/check.h"
#include "kernels/grid_cast.h"
#include "kernels/grid_norm.h"
#include "kernels/grid_tiles.h"
#include "kernels/grid_update.h"

namespace fsdpctl::kernels {
namespace {

struct Grid {
  uint32_t block, blocks, thread, threads;
  void add(uint64_t* target, uint64_t amount) const { *target += amount; }
};

class EmulatedGpu final : public Kernels {
 public:
  EmulatedGpu(uint32_t blocks, uint32_t threads) : blocks_(blocks), threads_(threads) {}
  std::string name() const override { return "emulated gpu"; }

  void cast(std::span<const CastEntry> table, std::span<CastCounts> counts) override {
    check(table, counts);
    for (CastCounts& count : counts) count = {};
    launch(table, [&](const Grid& grid, const auto& tiled) { cast_thread(grid, tiled, counts.empty() ? nullptr : counts.data()); });
  }
  void restore(std::span<const RestoreEntry> table, std::span<CastCounts> counts) override {
    check(table, counts);
    for (CastCounts& count : counts) count = {};
    launch(table,
           [&](const Grid& grid, const auto& tiled) { restore_thread(grid, tiled, counts.empty() ? nullptr : counts.data()); });
  }
  void adam(std::span<const AdamEntry> table, std::span<const AdamScalars> scalars) override {
    check(table, scalars);
    launch(table, [&](const Grid& grid, const auto& tiled) { adam_thread(grid, tiled, scalars.data()); });
  }
  void sgd(std::span<const SgdEntry> table, std::span<const SgdScalars> scalars) override {
    check(table, scalars);
    launch(table, [&](const Grid& grid, const auto& tiled) { sgd_thread(grid, tiled, scalars.data()); });
  }

  void unscale_norm(std::span<const GradientEntry> table, float inverse_scale, std::span<GradientNorm> results) override {
    check(table, results);
    const SortedGradients sorted = sort_gradients(table, results.size());
    const NormTable norm{tiled(std::span<const GradientEntry>(sorted.rows), sorted.map), sorted.result_tile.data()};
    for (uint32_t result = 0; result < results.size(); ++result) {
      BlockSum total{};
      for (uint32_t block = 0; block < blocks_; ++block) {
        BlockSum shared{};
        for_threads(block, [&](const Grid& grid) { norm_thread(grid, norm, result, inverse_scale, shared); });
        for_threads(block, [&](const Grid& grid) { norm_block(grid, shared, &total); });
      }
      ExactSum squares;
      std::memcpy(&squares, total.limb, sizeof squares);
      add(results[result].squares, squares);
      results[result].nonfinite += total.nonfinite;
    }
  }

  CopyTicket copy(std::span<const CopyEntry> table, Direction) override {
    check(table);
    for (const CopyEntry& entry : table) {
      if (entry.bytes != 0) std::memcpy(entry.target, entry.source, entry.bytes);
    }
    return 0;
  }
  void wait(CopyTicket) override {}
  void fence(CopyTicket) override {}
  void synchronize() override {}
  void* allocate(size_t bytes) override { return bytes == 0 ? nullptr : ::operator new(bytes, std::align_val_t{256}); }
  void* allocate_host(size_t bytes) override { return allocate(bytes); }
  void release(void* memory) noexcept override { ::operator delete(memory, std::align_val_t{256}); }
  void release_host(void* memory) noexcept override { release(memory); }

 private:
  template <class Entry>
  static TiledTable<Entry> tiled(std::span<const Entry> rows, const TileMap& map) {
    return {rows.data(), map.tile_row.data(), map.first_tile.data(), map.tiles()};
  }

  template <class Body>
  void for_threads(uint32_t block, Body body) const {
    for (uint32_t thread = 0; thread < threads_; ++thread) body(Grid{block, blocks_, thread, threads_});
  }

  template <class Entry, class Body>
  void launch(std::span<const Entry> rows, Body body) const {
    const TileMap map = tiles_of(rows);
    const TiledTable<Entry> table = tiled(rows, map);
    for (uint32_t block = 0; block < blocks_; ++block) for_threads(block, [&](const Grid& grid) { body(grid, table); });
  }

  uint32_t blocks_, threads_;
};

}  // namespace

std::unique_ptr<Kernels> emulated_gpu(uint32_t blocks, uint32_t threads) {
  return std::make_unique<EmulatedGpu>(blocks, threads);
}

}  // namespace fsdpctl::kernels
