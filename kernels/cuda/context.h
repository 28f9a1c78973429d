// What the plug-in keeps for one user of one GPU.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/cuda_abi.h"

namespace fsdpctl::kernels {

// Notes the first problem; true if this call went well.
bool succeeded(cudaError_t code, const char* doing, CudaProblem* problem);

// Device memory that grows.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  // Null on a problem. What was in it is lost.
  void* reserve(size_t bytes, CudaProblem* problem);
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// A table as it was last uploaded, so that a training step does not upload it again.
struct CachedTable {
  std::vector<unsigned char> rows;   // as given
  std::vector<uint64_t> layout;      // offsets of the parts within `device`, then numbers that the launch needs
  DeviceBuffer device;
};

// Pinned memory that an upload passes through, so that it neither waits for the stream nor needs the caller's memory later.
struct Staging {
  void* memory = nullptr;
  size_t size = 0;
  cudaEvent_t free = nullptr;   // recorded behind the last upload from it
};

struct CudaContext {
  int ordinal = 0;
  std::string name;
  int processors = 0;
  uint32_t blocks = 0;              // of every grid; 0: as many as run at once
  cudaStream_t stream = nullptr;    // of the kernels
  bool owns_stream = false;
  cudaStream_t copies[2] = {};      // by direction
  std::map<uint64_t, cudaEvent_t> tickets;
  uint64_t last_ticket = 0;
  CachedTable cast, restore, norm, adam, sgd;
  DeviceBuffer scalars, results;
  Staging staging[8];               // taken in turn
  uint32_t next_staging = 0;
};

// Enqueues a copy of host memory, which may be freed on return. False on a problem.
bool upload(CudaContext* context, void* device, const void* data, size_t bytes, CudaProblem* problem);

// launch.cu
void launch_cast(CudaContext* context, CudaInput<CastEntry> table, CudaArray<CastCounts> counts, CudaProblem* problem);
void launch_restore(CudaContext* context, CudaInput<RestoreEntry> table, CudaArray<CastCounts> counts, CudaProblem* problem);
void launch_norm(CudaContext* context, CudaInput<GradientEntry> table, float inverse_scale, CudaArray<GradientNorm> norms,
                 CudaProblem* problem);
void launch_adam(CudaContext* context, CudaInput<AdamEntry> table, CudaInput<AdamScalars> scalars, CudaProblem* problem);
void launch_sgd(CudaContext* context, CudaInput<SgdEntry> table, CudaInput<SgdScalars> scalars, CudaProblem* problem);

}  // namespace fsdpctl::kernels
