// Kernels: what training does to every element of many tensors in one pass, on the CPU or on a GPU, behind one contract.
//
// The two give the same bits: they share the per-element code (*_element.h) and round each operation once; sums of
// squares are exact (exact_sum.h). So nothing depends on the number of threads, the grid or how tensors are cut.
//
// Operations work on tables (table.h) in the order of calls. A table may be reused or freed when the call returns. Calls that
// give results back return when the results are there; the others may return before the work is done on a GPU: wait with
// synchronize(). A Kernels object belongs to one thread at a time. Two of them share nothing.
//
// Errors: a row that breaks table.h's rules as far as that can be seen (null or misaligned pointers, unknown types, an index
// out of range, too many elements) is Error(failed), before anything is changed. Of a GPU: Error(unsupported) when there is
// none, or no plug-in; Error(failed) when it is out of memory or fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/table.h"
#include "lib/base/dtype.h"

namespace fsdpctl::kernels {

enum class Direction : uint32_t { to_device = 0, to_host = 1 };

// Names a copy under way, for wait() and fence() of the same object.
using CopyTicket = uint64_t;

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual std::string name() const = 0;   // "cpu", "cuda:0 (NVIDIA H200)"

  // `counts`: one per row, overwritten; or empty, and nothing is counted (and a GPU not waited for).
  virtual void cast(std::span<const CastEntry> table, std::span<CastCounts> counts) = 0;
  virtual void restore(std::span<const RestoreEntry> table, std::span<CastCounts> counts) = 0;

  // Adds to `results`, which the caller has zeroed at the start; see GradientEntry. At most 2^40 elements a call.
  virtual void unscale_norm(std::span<const GradientEntry> table, float inverse_scale, std::span<GradientNorm> results) = 0;

  virtual void adam(std::span<const AdamEntry> table, std::span<const AdamScalars> scalars) = 0;
  virtual void sgd(std::span<const SgdEntry> table, std::span<const SgdScalars> scalars) = 0;

  // Moves bytes between host memory (pinned: from allocate_host) and the device, beside the kernels: one stream for each
  // direction. A copy begins after the kernels given before it. Its memory must stay, and what it reads unchanged, until
  // wait(): before that the target may hold anything. fence(): kernels given later start after it.
  virtual CopyTicket copy(std::span<const CopyEntry> table, Direction direction) = 0;
  virtual void wait(CopyTicket ticket) = 0;
  virtual void fence(CopyTicket ticket) = 0;

  virtual void synchronize() = 0;   // returns when all work, copies included, is done

  // Memory of the device, and of the host where the device reaches it fast. 256-byte aligned, not initialised; release
  // with the same object, which must outlive it. Null for 0 bytes.
  virtual void* allocate(size_t bytes) = 0;
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void release_host(void* memory) noexcept = 0;
};

// The instruction sets that the CPU's kernels are compiled for. All give the same bits.
enum class CpuLevel { baseline, avx2 };
CpuLevel best_cpu_level();   // of this machine

// `threads` as in lib/base/parallel.h. Error(unsupported) for a level that this machine does not have.
std::unique_ptr<Kernels> cpu_kernels(int threads, CpuLevel level = best_cpu_level());

// The GPU with this ordinal, through the plug-in (cuda_plugin.h). `stream`: a cudaStream_t that kernels are given to, owned by
// the caller; null: a stream of its own. `blocks`: size of the grid, for tests; 0: what fits the GPU.
std::unique_ptr<Kernels> cuda_kernels(int ordinal, void* stream = nullptr, uint32_t blocks = 0);

// The kernels' type for a dtype of a checkpoint; Error(unsupported) for others than float32, float16 and bfloat16.
FloatType float_type(DType dtype);
uint32_t float_size(FloatType type);   // bytes

}  // namespace fsdpctl::kernels
