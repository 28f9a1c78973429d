// Between our words and LibTorch's: dtypes, and tensors over memory that somebody else owns.
#pragma once

#include <ATen/core/Tensor.h>

#include "lib/base/dtype.h"

namespace fsdpctl::train {

at::ScalarType scalar_type(DType dtype);        // Error(unsupported) for dtypes that nothing computes in
DType dtype_of(at::ScalarType type);

// 1-D, on the CPU, contiguous; does not own `memory`. Of null memory only for count 0.
at::Tensor tensor_over(void* memory, uint64_t count, DType dtype);

}  // namespace fsdpctl::train
