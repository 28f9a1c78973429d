// The CPU's loops for any processor of the architecture. Where it has no fused multiply-add, libm's gives the same bits, slowly.
#include "kernels/cpu_loops.h"

namespace fsdpctl::kernels {

const CpuLoops kBaselineLoops = {cast, cast_strided, unscale_norm, adam, sgd};

}  // namespace fsdpctl::kernels
