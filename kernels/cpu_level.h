// The CPU's loops, compiled once per instruction set: each works on a contiguous range of one tensor, in one thread.
// Private to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"

namespace fsdpctl::kernels {

// `stream`: what is written is too much to be read again from the caches.
struct CpuLoops {
  // out[i] = in[i]. No alignment is needed. Strides count elements. `counts` may be null.
  void (*cast)(const void* in, FloatType in_type, void* out, FloatType out_type, size_t n, bool stream, CastCounts* counts);
  void (*cast_strided)(const void* in, FloatType in_type, size_t in_stride, void* out, FloatType out_type, size_t out_stride,
                       size_t n, bool stream, CastCounts* counts);
  // Elements [begin, end) of the tensor.
  void (*unscale_norm)(const GradientEntry& tensor, size_t begin, size_t end, float inverse_scale, bool stream,
                       GradientNorm& result);
  void (*adam)(const AdamEntry& tensor, size_t begin, size_t end, bool stream, const AdamScalars& scalars);
  void (*sgd)(const SgdEntry& tensor, size_t begin, size_t end, bool stream, const SgdScalars& scalars);
};

extern const CpuLoops kBaselineLoops;
#if defined(__x86_64__)
extern const CpuLoops kAvx2Loops;   // AVX2, FMA and F16C
#endif

}  // namespace fsdpctl::kernels
