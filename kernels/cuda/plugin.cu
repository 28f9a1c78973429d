// The plug-in's ABI: devices, memory, streams and copies.
#include <cstdio>
#include <cstring>

#include "kernels/cuda/context.h"

namespace fsdpctl::kernels {

bool succeeded(cudaError_t code, const char* doing, CudaProblem* problem) {
  if (code == cudaSuccess) return true;
  if (problem == nullptr || problem->status != CudaStatus::ok) return false;
  const bool none = code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver;
  problem->status = none                                 ? CudaStatus::no_device
                    : code == cudaErrorMemoryAllocation ? CudaStatus::out_of_memory
                                                        : CudaStatus::failed;
  if (none) {
    std::snprintf(problem->text, sizeof problem->text, "%s", cudaGetErrorString(code));
  } else {
    std::snprintf(problem->text, sizeof problem->text, "%s: %s", doing, cudaGetErrorString(code));
  }
  (void)cudaGetLastError();   // so that the next call does not report it again
  return false;
}

void* DeviceBuffer::reserve(size_t bytes, CudaProblem* problem) {
  if (data_ != nullptr && bytes <= size_) return data_;
  cudaFree(data_);   // waits for kernels that use it
  data_ = nullptr;
  const size_t size = bytes + bytes / 2 + 256;
  if (!succeeded(cudaMalloc(&data_, size), "allocating device memory", problem)) data_ = nullptr;
  size_ = data_ != nullptr ? size : 0;
  return data_;
}

bool upload(CudaContext* context, void* device, const void* data, size_t bytes, CudaProblem* problem) {
  Staging& staging = context->staging[context->next_staging++ % 8];
  if (staging.free == nullptr) {
    if (!succeeded(cudaEventCreateWithFlags(&staging.free, cudaEventDisableTiming), "making an event", problem)) return false;
  } else if (!succeeded(cudaEventSynchronize(staging.free), "waiting for an upload", problem)) {
    return false;
  }
  if (staging.size < bytes) {
    cudaFreeHost(staging.memory);
    staging.memory = nullptr;
    staging.size = 0;
    if (!succeeded(cudaMallocHost(&staging.memory, bytes), "allocating pinned memory", problem)) return false;
    staging.size = bytes;
  }
  std::memcpy(staging.memory, data, bytes);
  return succeeded(cudaMemcpyAsync(device, staging.memory, bytes, cudaMemcpyHostToDevice, context->stream), "uploading", problem) &&
         succeeded(cudaEventRecord(staging.free, context->stream), "recording an event", problem);
}

namespace {

void close(CudaContext* context) {
  if (context == nullptr) return;
  cudaSetDevice(context->ordinal);
  for (const auto& [ticket, event] : context->tickets) cudaEventDestroy(event);
  for (const cudaStream_t stream : context->copies) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  if (context->stream != nullptr) cudaStreamSynchronize(context->stream);
  for (const Staging& staging : context->staging) {
    if (staging.free != nullptr) cudaEventDestroy(staging.free);
    cudaFreeHost(staging.memory);
  }
  if (context->owns_stream && context->stream != nullptr) cudaStreamDestroy(context->stream);
  delete context;
}

bool find_device(int32_t ordinal, CudaProblem* problem) {
  int count = 0;
  if (!succeeded(cudaGetDeviceCount(&count), "counting devices", problem)) return false;
  if (ordinal >= 0 && ordinal < count) return succeeded(cudaSetDevice(ordinal), "choosing a device", problem);
  problem->status = CudaStatus::no_device;
  std::snprintf(problem->text, sizeof problem->text, "%d devices, and none is number %d", count, static_cast<int>(ordinal));
  return false;
}

bool describe(CudaContext* context, CudaProblem* problem) {
  cudaDeviceProp properties;
  const cudaError_t code = cudaGetDeviceProperties(&properties, context->ordinal);
  if (!succeeded(code, "asking for the device's properties", problem)) return false;
  context->name = properties.name;
  context->processors = properties.multiProcessorCount;
  return true;
}

CudaContext* open(int32_t ordinal, void* stream, uint32_t blocks, CudaProblem* problem) {
  if (!find_device(ordinal, problem)) return nullptr;
  auto* context = new CudaContext;
  context->ordinal = ordinal;
  context->blocks = blocks;
  context->stream = static_cast<cudaStream_t>(stream);
  context->owns_stream = stream == nullptr;
  bool well = describe(context, problem);
  const auto make = [&](cudaStream_t* made) {
    well = well && succeeded(cudaStreamCreateWithFlags(made, cudaStreamNonBlocking), "making a stream", problem);
  };
  if (context->owns_stream) make(&context->stream);
  for (cudaStream_t& copies : context->copies) make(&copies);
  if (well) return context;
  close(context);
  return nullptr;
}

const char* device_name(CudaContext* context) { return context->name.c_str(); }

// Makes the context's device the thread's, then calls the function.
template <auto kFunction, class... Arguments>
auto on_device(CudaContext* context, Arguments... arguments) {
  cudaSetDevice(context->ordinal);
  return kFunction(context, arguments...);
}
template <auto kFunction, class Result, class... Arguments>
constexpr auto entry(Result (*)(CudaContext*, Arguments...)) {
  return &on_device<kFunction, Arguments...>;
}

// ---- copies

// Makes `later` wait for what is in `earlier` now.
bool order(cudaStream_t earlier, cudaStream_t later, CudaProblem* problem) {
  cudaEvent_t event = nullptr;
  if (!succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event", problem)) return false;
  const bool well = succeeded(cudaEventRecord(event, earlier), "recording an event", problem) &&
                    succeeded(cudaStreamWaitEvent(later, event, 0), "ordering streams", problem);
  cudaEventDestroy(event);   // released when it has happened
  return well;
}

uint64_t copy(CudaContext* context, CudaInput<CopyEntry> table, uint32_t to_host, CudaProblem* problem) {
  const cudaStream_t stream = context->copies[to_host != 0 ? 1 : 0];
  if (!order(context->stream, stream, problem)) return 0;
  for (uint64_t i = 0; i < table.size; ++i) {
    const CopyEntry& entry = table.data[i];
    if (entry.bytes == 0) continue;
    const cudaMemcpyKind kind = to_host != 0 ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    if (!succeeded(cudaMemcpyAsync(entry.target, entry.source, entry.bytes, kind, stream), "copying", problem)) return 0;
  }
  cudaEvent_t done = nullptr;
  if (!succeeded(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "making an event", problem)) return 0;
  const uint64_t ticket = ++context->last_ticket;
  context->tickets.emplace(ticket, done);
  return succeeded(cudaEventRecord(done, stream), "recording an event", problem) ? ticket : 0;
}

void wait(CudaContext* context, uint64_t ticket, CudaProblem* problem) {
  const auto found = context->tickets.find(ticket);
  if (found == context->tickets.end()) return;   // waited for before
  succeeded(cudaEventSynchronize(found->second), "waiting for a copy", problem);
  cudaEventDestroy(found->second);
  context->tickets.erase(found);
}

void fence(CudaContext* context, uint64_t ticket, CudaProblem* problem) {
  const auto found = context->tickets.find(ticket);
  if (found == context->tickets.end()) return;
  succeeded(cudaStreamWaitEvent(context->stream, found->second, 0), "ordering streams", problem);
}

void synchronize(CudaContext* context, CudaProblem* problem) {
  for (const cudaStream_t stream : {context->stream, context->copies[0], context->copies[1]}) {
    succeeded(cudaStreamSynchronize(stream), "waiting for the device", problem);
  }
}

// ---- memory

void* allocate(CudaContext*, uint64_t bytes, uint32_t on_host, CudaProblem* problem) {
  if (bytes == 0) return nullptr;
  void* memory = nullptr;
  const cudaError_t code = on_host != 0 ? cudaMallocHost(&memory, bytes) : cudaMalloc(&memory, bytes);
  return succeeded(code, on_host != 0 ? "allocating pinned memory" : "allocating device memory", problem) ? memory : nullptr;
}

void release(CudaContext*, void* memory, uint32_t on_host) {
  if (on_host != 0) {
    cudaFreeHost(memory);
  } else {
    cudaFree(memory);
  }
}

const CudaApi kApi = {
    kCudaAbiVersion,
    open,
    close,
    device_name,
    entry<launch_cast>(launch_cast),
    entry<launch_restore>(launch_restore),
    entry<launch_norm>(launch_norm),
    entry<launch_adam>(launch_adam),
    entry<launch_sgd>(launch_sgd),
    entry<copy>(copy),
    entry<wait>(wait),
    entry<fence>(fence),
    entry<synchronize>(synchronize),
    entry<allocate>(allocate),
    entry<release>(release),
};

}  // namespace
}  // namespace fsdpctl::kernels

extern "C" __attribute__((visibility("default"))) const fsdpctl::kernels::CudaApi* fsdpctl_cuda_api() {
  return &fsdpctl::kernels::kApi;
}
