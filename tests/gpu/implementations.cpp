// A real GPU, with grids of several sizes: the tests of tests/kernels run on each.
#include "tests/kernels/implementations.h"

namespace fsdpctl::kernels {

std::vector<Implementation> implementations() {
  return {
      {"Cuda", [] { return cuda_kernels(0); }},
      {"CudaOneBlock", [] { return cuda_kernels(0, nullptr, 1); }},
      {"CudaThirteenBlocks", [] { return cuda_kernels(0, nullptr, 13); }},
  };
}

}  // namespace fsdpctl::kernels
