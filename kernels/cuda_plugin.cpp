#include "kernels/cuda_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "lib/base/finding.h"

namespace fsdpctl::kernels {
namespace {

constexpr const char* kUseTheCpu = "use --device cpu";

}  // namespace

std::string cuda_plugin_path() {
  if (const char* path = std::getenv("FSDPCTL_CUDA_PLUGIN"); path != nullptr && *path != '\0') return path;
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path() / FSDPCTL_CUDA_PLUGIN_FOLDER / "libfsdpctl_cuda.so").lexically_normal().string();
}

const CudaApi& load_cuda_plugin(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);   // never closed: CUDA does not like to be unloaded
  if (library == nullptr) {
    throw Error(Exit::unsupported, "the CUDA plug-in cannot be loaded").at(path).found_only(dlerror()).try_(kUseTheCpu);
  }
  using Entry = const CudaApi* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kCudaApiSymbol));
  const CudaApi* api = entry != nullptr ? entry() : nullptr;
  if (api == nullptr) throw Error(Exit::unsupported, "not a CUDA plug-in of fsdpctl").at(path).try_(kUseTheCpu);
  if (api->version != kCudaAbiVersion) {
    throw Error(Exit::unsupported, "the CUDA plug-in is another version's").at(path)
        .saw(std::to_string(kCudaAbiVersion), std::to_string(api->version)).try_(kUseTheCpu);
  }
  return *api;
}

}  // namespace fsdpctl::kernels
