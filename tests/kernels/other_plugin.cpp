// A plug-in of a version that will never be.
#include "kernels/cuda_abi.h"

extern "C" const fsdpctl::kernels::CudaApi* fsdpctl_cuda_api();
extern "C" const fsdpctl::kernels::CudaApi* fsdpctl_cuda_api() {
  static const fsdpctl::kernels::CudaApi api = {.version = 999};
  return &api;
}
