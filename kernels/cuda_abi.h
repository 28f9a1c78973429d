// Between us and the plug-in libfsdpctl_cuda.so: plain data and functions, no exceptions, one exported symbol. The plug-in is
// built with nvcc and knows nothing of our libraries; it is loaded only when somebody asks for a GPU.
//
// Functions that take a CudaProblem leave it alone when all is well. Tables and arrays are host memory, and may be freed on
// return; the pointers in tables are device memory. Semantics: kernels.h, whose checks were made.
#pragma once

#include <cstdint>

#include "kernels/table.h"

namespace fsdpctl::kernels {

inline constexpr uint32_t kCudaAbiVersion = 1;   // any change of this header or of table.h
inline constexpr const char* kCudaApiSymbol = "fsdpctl_cuda_api";

struct CudaContext;

enum class CudaStatus : uint32_t { ok = 0, no_device = 1, out_of_memory = 2, failed = 3 };

struct CudaProblem {
  CudaStatus status;
  char text[252];   // one line, ends with 0
};

template <class T>
struct CudaArray {
  T* data;
  uint64_t size;
};
template <class T>
using CudaInput = CudaArray<const T>;

struct CudaApi {
  uint32_t version;
  CudaContext* (*open)(int32_t ordinal, void* stream, uint32_t blocks, CudaProblem* problem);   // null on a problem
  void (*close)(CudaContext* context);
  const char* (*device_name)(CudaContext* context);

  void (*cast)(CudaContext* context, CudaInput<CastEntry> table, CudaArray<CastCounts> counts, CudaProblem* problem);
  void (*restore)(CudaContext* context, CudaInput<RestoreEntry> table, CudaArray<CastCounts> counts, CudaProblem* problem);
  // Overwrites `norms` with the sums of this call.
  void (*unscale_norm)(CudaContext* context, CudaInput<GradientEntry> table, float inverse_scale,
                       CudaArray<GradientNorm> norms, CudaProblem* problem);
  void (*adam)(CudaContext* context, CudaInput<AdamEntry> table, CudaInput<AdamScalars> scalars, CudaProblem* problem);
  void (*sgd)(CudaContext* context, CudaInput<SgdEntry> table, CudaInput<SgdScalars> scalars, CudaProblem* problem);

  uint64_t (*copy)(CudaContext* context, CudaInput<CopyEntry> table, uint32_t to_host, CudaProblem* problem);
  void (*wait)(CudaContext* context, uint64_t ticket, CudaProblem* problem);
  void (*fence)(CudaContext* context, uint64_t ticket, CudaProblem* problem);
  void (*synchronize)(CudaContext* context, CudaProblem* problem);

  void* (*allocate)(CudaContext* context, uint64_t bytes, uint32_t on_host, CudaProblem* problem);
  void (*release)(CudaContext* context, void* memory, uint32_t on_host);
};

}  // namespace fsdpctl::kernels
