// The kernels, and how tables get to them. One launch per operation, whatever the number of tensors: a grid that fills the GPU
// once takes tile after tile.
#include <cstring>
#include <type_traits>

#include "kernels/cuda/context.h"
#include "kernels/grid_cast.h"
#include "kernels/grid_norm.h"
#include "kernels/grid_tiles.h"
#include "kernels/grid_update.h"

namespace fsdpctl::kernels {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint64_t kTilesPerBlock = (uint64_t{1} << 29) / kTile;   // of unscale_norm: a block's sum holds 2^30 additions

struct DeviceGrid {
  uint32_t block, blocks, thread, threads;
  __device__ void add(uint64_t* target, uint64_t amount) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(target), static_cast<unsigned long long>(amount));
  }
};

__device__ DeviceGrid this_thread() { return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x}; }

__global__ void __launch_bounds__(kThreads) cast_kernel(TiledTable<CastEntry> table, CastCounts* counts) {
  cast_thread(this_thread(), table, counts);
}

__global__ void __launch_bounds__(kThreads) restore_kernel(TiledTable<RestoreEntry> table, CastCounts* counts) {
  restore_thread(this_thread(), table, counts);
}

__global__ void __launch_bounds__(kThreads) adam_kernel(TiledTable<AdamEntry> table, const AdamScalars* scalars) {
  adam_thread(this_thread(), table, scalars);
}

__global__ void __launch_bounds__(kThreads) sgd_kernel(TiledTable<SgdEntry> table, const SgdScalars* scalars) {
  sgd_thread(this_thread(), table, scalars);
}

__global__ void __launch_bounds__(kThreads) norm_kernel(NormTable table, uint32_t first_result, float inverse_scale,
                                                        BlockSum* results) {
  __shared__ BlockSum sum;
  static_assert(sizeof(BlockSum) % sizeof(uint64_t) == 0 && sizeof(BlockSum) / sizeof(uint64_t) <= kThreads);
  if (threadIdx.x < sizeof(BlockSum) / sizeof(uint64_t)) reinterpret_cast<uint64_t*>(&sum)[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t result = first_result + blockIdx.y;
  norm_thread(this_thread(), table, result, inverse_scale, sum);
  __syncthreads();
  norm_block(this_thread(), sum, &results[result]);
}

// ---- tables

// Arrays one after the other, each 16-byte aligned, as they go to the device.
class Packed {
 public:
  template <class T>
  void append(const T* data, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.resize((bytes_.size() + 15) / 16 * 16);
    offsets_.push_back(bytes_.size());
    const auto* begin = reinterpret_cast<const unsigned char*>(data);
    bytes_.insert(bytes_.end(), begin, begin + count * sizeof(T));
  }
  void note(uint64_t number) { offsets_.push_back(number); }

  // Makes it the cached table. False on a problem.
  bool upload_to(CudaContext* context, CachedTable& cache, CudaProblem* problem) {
    void* device = cache.device.reserve(bytes_.size(), problem);
    if (device == nullptr || !upload(context, device, bytes_.data(), bytes_.size(), problem)) return false;
    cache.layout = offsets_;
    return true;
  }

 private:
  std::vector<unsigned char> bytes_;
  std::vector<uint64_t> offsets_;
};

template <class T>
const T* part(const CachedTable& cache, size_t index) {
  return reinterpret_cast<const T*>(static_cast<const unsigned char*>(cache.device.data()) + cache.layout[index]);
}

// Whether the table is the one on the device; notes it as such otherwise.
template <class Entry>
bool is_cached(CachedTable& cache, CudaInput<Entry> table, uint64_t key = 0) {
  const auto* rows = reinterpret_cast<const unsigned char*>(table.data);
  const size_t bytes = table.size * sizeof(Entry);
  const bool same = !cache.layout.empty() && cache.layout.back() == key && cache.rows.size() == bytes &&
                    (bytes == 0 || std::memcmp(cache.rows.data(), rows, bytes) == 0);
  if (!same) {
    cache.layout.clear();
    cache.rows.assign(rows, rows + bytes);
  }
  return same;
}

template <class Entry>
bool tiled(CudaContext* context, CachedTable& cache, CudaInput<Entry> table, TiledTable<Entry>& out, CudaProblem* problem) {
  if (!is_cached(cache, table)) {
    const TileMap map = tiles_of(std::span<const Entry>(table.data, table.size));
    Packed packed;
    packed.append(table.data, table.size);
    packed.append(map.tile_row.data(), map.tile_row.size());
    packed.append(map.first_tile.data(), map.first_tile.size());
    packed.note(map.tiles());
    packed.note(0);   // the key
    if (!packed.upload_to(context, cache, problem)) return false;
  }
  out = {part<Entry>(cache, 0), part<uint32_t>(cache, 1), part<uint64_t>(cache, 2), cache.layout[3]};
  return true;
}

// As many blocks as run at once, but no more than tiles.
template <class Kernel>
uint32_t grid_size(const CudaContext* context, Kernel* kernel, uint64_t tiles) {
  uint64_t blocks = context->blocks;
  if (blocks == 0) {
    int resident = 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, 0);
    blocks = static_cast<uint64_t>(context->processors) * static_cast<uint64_t>(resident > 0 ? resident : 1);
  }
  return static_cast<uint32_t>(blocks < tiles ? blocks : tiles);
}

// ---- results and scalars

// Zeroed device memory; null on a problem.
void* zeroed(CudaContext* context, size_t bytes, CudaProblem* problem) {
  void* memory = context->results.reserve(bytes, problem);
  if (memory == nullptr) return nullptr;
  return succeeded(cudaMemsetAsync(memory, 0, bytes, context->stream), "clearing results", problem) ? memory : nullptr;
}

void fetch(CudaContext* context, void* to, const void* from, size_t bytes, CudaProblem* problem) {
  if (succeeded(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, context->stream), "fetching results", problem)) {
    succeeded(cudaStreamSynchronize(context->stream), "waiting for results", problem);
  }
}

template <class Scalars>
const Scalars* upload_scalars(CudaContext* context, CudaInput<Scalars> scalars, CudaProblem* problem) {
  const size_t bytes = scalars.size * sizeof(Scalars);
  void* memory = context->scalars.reserve(bytes, problem);
  if (memory == nullptr) return nullptr;
  return upload(context, memory, scalars.data, bytes, problem) ? static_cast<const Scalars*>(memory) : nullptr;
}

template <class Entry, class Kernel>
void launch_counting(CudaContext* context, CachedTable& cache, Kernel* kernel, CudaInput<Entry> table,
                     CudaArray<CastCounts> counts, CudaProblem* problem) {
  TiledTable<Entry> device_table;
  if (!tiled(context, cache, table, device_table, problem)) return;
  const size_t bytes = counts.size * sizeof(CastCounts);
  CastCounts* device_counts = nullptr;
  if (counts.size != 0) {
    device_counts = static_cast<CastCounts*>(zeroed(context, bytes, problem));
    if (device_counts == nullptr) return;
  }
  if (device_table.tiles != 0) {
    kernel<<<grid_size(context, kernel, device_table.tiles), kThreads, 0, context->stream>>>(device_table, device_counts);
    if (!succeeded(cudaGetLastError(), "launching a cast", problem)) return;
  }
  if (counts.size != 0) fetch(context, counts.data, device_counts, bytes, problem);
}

template <class Entry, class Scalars, class Kernel>
void launch_update(CudaContext* context, CachedTable& cache, Kernel* kernel, CudaInput<Entry> table, CudaInput<Scalars> scalars,
                   CudaProblem* problem) {
  TiledTable<Entry> device_table;
  if (!tiled(context, cache, table, device_table, problem) || device_table.tiles == 0) return;
  const Scalars* device_scalars = upload_scalars(context, scalars, problem);
  if (device_scalars == nullptr) return;
  kernel<<<grid_size(context, kernel, device_table.tiles), kThreads, 0, context->stream>>>(device_table, device_scalars);
  succeeded(cudaGetLastError(), "launching an optimizer", problem);
}

// The rows sorted by result, on the device. `most`: the largest number of tiles of one result.
bool norm_table(CudaContext* context, CudaInput<GradientEntry> table, size_t results, NormTable& out, uint64_t& most,
                CudaProblem* problem) {
  CachedTable& cache = context->norm;
  if (!is_cached(cache, table, results)) {
    const SortedGradients sorted = sort_gradients(std::span<const GradientEntry>(table.data, table.size), results);
    uint64_t largest = 0;
    for (size_t i = 0; i < results; ++i) largest = std::max(largest, sorted.result_tile[i + 1] - sorted.result_tile[i]);
    Packed packed;
    packed.append(sorted.rows.data(), sorted.rows.size());
    packed.append(sorted.map.tile_row.data(), sorted.map.tile_row.size());
    packed.append(sorted.map.first_tile.data(), sorted.map.first_tile.size());
    packed.append(sorted.result_tile.data(), sorted.result_tile.size());
    packed.note(sorted.map.tiles());
    packed.note(largest);
    packed.note(results);   // the key
    if (!packed.upload_to(context, cache, problem)) return false;
  }
  out = {{part<GradientEntry>(cache, 0), part<uint32_t>(cache, 1), part<uint64_t>(cache, 2), cache.layout[4]},
         part<uint64_t>(cache, 3)};
  most = cache.layout[5];
  return true;
}

}  // namespace

void launch_cast(CudaContext* context, CudaInput<CastEntry> table, CudaArray<CastCounts> counts, CudaProblem* problem) {
  launch_counting(context, context->cast, cast_kernel, table, counts, problem);
}

void launch_restore(CudaContext* context, CudaInput<RestoreEntry> table, CudaArray<CastCounts> counts, CudaProblem* problem) {
  launch_counting(context, context->restore, restore_kernel, table, counts, problem);
}

void launch_adam(CudaContext* context, CudaInput<AdamEntry> table, CudaInput<AdamScalars> scalars, CudaProblem* problem) {
  launch_update(context, context->adam, adam_kernel, table, scalars, problem);
}

void launch_sgd(CudaContext* context, CudaInput<SgdEntry> table, CudaInput<SgdScalars> scalars, CudaProblem* problem) {
  launch_update(context, context->sgd, sgd_kernel, table, scalars, problem);
}

void launch_norm(CudaContext* context, CudaInput<GradientEntry> table, float inverse_scale, CudaArray<GradientNorm> norms,
                 CudaProblem* problem) {
  static_assert(sizeof(GradientNorm) == sizeof(BlockSum));
  if (norms.size == 0) return;
  NormTable device_table;
  uint64_t most = 0;
  if (!norm_table(context, table, norms.size, device_table, most, problem)) return;
  const size_t bytes = norms.size * sizeof(GradientNorm);
  auto* results = static_cast<BlockSum*>(zeroed(context, bytes, problem));
  if (results == nullptr) return;
  if (most != 0) {
    // All results together fill the GPU; none gets more blocks than tiles, nor more tiles than a block's sum can hold.
    uint64_t blocks = grid_size(context, norm_kernel, device_table.table.tiles);
    if (context->blocks == 0) blocks = (blocks + norms.size - 1) / norms.size;
    blocks = std::max(std::min(blocks, most), (most + kTilesPerBlock - 1) / kTilesPerBlock);
    constexpr uint64_t kMostRows = 65535;
    for (uint64_t first = 0; first < norms.size; first += kMostRows) {
      const dim3 grid(static_cast<uint32_t>(blocks), static_cast<uint32_t>(std::min(kMostRows, norms.size - first)));
      norm_kernel<<<grid, kThreads, 0, context->stream>>>(device_table, static_cast<uint32_t>(first), inverse_scale, results);
      if (!succeeded(cudaGetLastError(), "launching unscale_norm", problem)) return;
    }
  }
  fetch(context, norms.data, results, bytes, problem);
}

}  // namespace fsdpctl::kernels
