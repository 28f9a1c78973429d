// Finding and loading the CUDA plug-in.
#pragma once

#include <string>

#include "kernels/cuda_abi.h"

namespace fsdpctl::kernels {

// FSDPCTL_CUDA_PLUGIN if set; else where the build and the installation put it, seen from the running program.
std::string cuda_plugin_path();

// Loads it, once for the life of the process. Error(unsupported) if it is missing, no plug-in, or another version's.
const CudaApi& load_cuda_plugin(const std::string& path);

}  // namespace fsdpctl::kernels
