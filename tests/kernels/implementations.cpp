#include "tests/kernels/implementations.h"

#include "tests/kernels/emulated_gpu.h"

namespace fsdpctl::kernels {

std::vector<Implementation> implementations() {
  std::vector<Implementation> all = {
      {"CpuBaseline", [] { return cpu_kernels(1, CpuLevel::baseline); }},
      {"CpuOneThread", [] { return cpu_kernels(1); }},
      {"CpuThreeThreads", [] { return cpu_kernels(3); }},
      {"GridOfOneBlock", [] { return emulated_gpu(1, 32); }},
      {"GridOfSevenBlocks", [] { return emulated_gpu(7, 96); }},
  };
  return all;
}

}  // namespace fsdpctl::kernels
