// The GPU's per-thread code on the CPU: blocks one after the other, and their threads one after the other between the points
// where a GPU would wait.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/kernels.h"

namespace fsdpctl::kernels {

std::unique_ptr<Kernels> emulated_gpu(uint32_t blocks, uint32_t threads);

}  // namespace fsdpctl::kernels
