// The CPU's loops for x86-64 with AVX2, FMA and F16C. Wider vectors gain nothing: the loops wait for memory.
#include "kernels/cpu_loops.h"

namespace fsdpctl::kernels {

const CpuLoops kAvx2Loops = {cast, cast_strided, unscale_norm, adam, sgd};

}  // namespace fsdpctl::kernels
