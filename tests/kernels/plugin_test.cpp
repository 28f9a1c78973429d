// The CUDA plug-in where it cannot work: no GPU, no file, another file, another version.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cuda_plugin.h"
#include "kernels/kernels.h"
#include "lib/base/finding.h"

namespace fsdpctl::kernels {
namespace {

template <class Call>
Finding refusal_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::unsupported);
    EXPECT_EQ(error.finding().hint, "use --device cpu");
    return error.finding();
  }
  ADD_FAILURE() << "not refused";
  return {};
}

TEST(CudaPlugin, WithoutAGpuASentenceAndExitCodeFive) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);   // also where there is one
  const Finding refusal = refusal_of([] { cuda_kernels(0); });
#if FSDPCTL_HAS_CUDA_PLUGIN
  EXPECT_EQ(refusal.what, "no CUDA device");
  EXPECT_FALSE(refusal.found.empty());
#else
  EXPECT_EQ(refusal.what, "the CUDA plug-in cannot be loaded");
#endif
}

TEST(CudaPlugin, Missing) {
  const Finding refusal = refusal_of([] { load_cuda_plugin("/nowhere/libfsdpctl_cuda.so"); });
  EXPECT_EQ(refusal.what, "the CUDA plug-in cannot be loaded");
  EXPECT_EQ(refusal.where.path, "/nowhere/libfsdpctl_cuda.so");
}

TEST(CudaPlugin, AnotherLibrary) {
  EXPECT_EQ(refusal_of([] { load_cuda_plugin("libm.so.6"); }).what, "not a CUDA plug-in of fsdpctl");
}

TEST(CudaPlugin, AnotherVersion) {
  const Finding refusal = refusal_of([] { load_cuda_plugin(FSDPCTL_OTHER_PLUGIN); });
  EXPECT_EQ(refusal.what, "the CUDA plug-in is another version's");
  EXPECT_EQ(refusal.found, "999");
}

TEST(CudaPlugin, IsFoundBesideTheProgramOrWhereTheUserSays) {
  unsetenv("FSDPCTL_CUDA_PLUGIN");
  EXPECT_NE(cuda_plugin_path().find("/libfsdpctl_cuda.so"), std::string::npos);
  setenv("FSDPCTL_CUDA_PLUGIN", "/some/where.so", 1);
  EXPECT_EQ(cuda_plugin_path(), "/some/where.so");
  unsetenv("FSDPCTL_CUDA_PLUGIN");
}

}  // namespace
}  // namespace fsdpctl::kernels
