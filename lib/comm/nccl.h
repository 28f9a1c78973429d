// Ranks with a GPU each: collectives by NCCL, called directly. A plug-in, libfsdpctl_nccl.so, so that programs start
// and run without CUDA; built where NCCL and the CUDA runtime are found.
//
// NCCL moves data only. Sums over ranks are the caller's kernel, in rank order in float32, so that they are the same bits
// as on the CPU; comparing what ranks are about to do, agreeing and failing go through `control`.
#pragma once

#include <functional>
#include <memory>

#include "lib/comm/message_communicator.h"

namespace fsdpctl {

struct NcclOptions {
  int device = 0;                         // of this rank; CUDA's number
  void* stream = nullptr;                 // cudaStream_t of the caller: operations begin after what is in it
  Milliseconds timeout{600'000};          // for an operation to finish
  // out[i] = parts[0 * out.count + i] + parts[1 * out.count + i] + ... in rank order and in float32, out rounded once;
  // `parts` has ranks * out.count elements of `in`, all on the GPU. Starts on `stream` and returns.
  std::function<void(DType in, const void* parts, int ranks, MutableElements out, void* stream)> sum_in_rank_order;
};

// `control` connects the same ranks in the same order, and is used by nothing else from then on. Buffers are on the GPU.
// all_reduce goes by way of the host: it is for the few numbers of a step. wait() returns when the data is there, not
// when it is queued: a rank that dies must not leave the others waiting in the driver.
// Error(unsupported) where there is no such GPU.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> control, const NcclOptions& options);

// What the plug-in exports under kMakeNccl, for dlsym. The caller owns the result; Errors pass through.
using MakeNccl = Communicator* (*)(std::unique_ptr<Communicator>* control, const NcclOptions* options);
inline constexpr const char* kMakeNccl = "fsdpctl_make_nccl_communicator";

}  // namespace fsdpctl
