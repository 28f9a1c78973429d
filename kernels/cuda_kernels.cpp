// Kernels on a GPU, through the plug-in.
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda_plugin.h"
#include "kernels/kernels.h"
#include "lib/base/finding.h"

namespace fsdpctl::kernels {
namespace {

void require(const CudaProblem& problem) {
  switch (problem.status) {
    case CudaStatus::ok: return;
    case CudaStatus::no_device:
      throw Error(Exit::unsupported, "no CUDA device").found_only(problem.text).try_("use --device cpu");
    case CudaStatus::out_of_memory: throw Error(Exit::failed, "out of memory of the CUDA device").found_only(problem.text);
    default: throw Error(Exit::failed, "the CUDA device failed").found_only(problem.text);
  }
}

template <class T>
CudaInput<T> input(std::span<const T> table) { return {table.data(), table.size()}; }

class CudaKernels final : public Kernels {
 public:
  CudaKernels(const CudaApi& api, int ordinal, void* stream, uint32_t blocks) : api_(api), ordinal_(ordinal) {
    CudaProblem problem{};
    context_ = api_.open(ordinal, stream, blocks, &problem);
    require(problem);
  }
  ~CudaKernels() override { api_.close(context_); }
  CudaKernels(const CudaKernels&) = delete;

  std::string name() const override {
    return "cuda:" + std::to_string(ordinal_) + " (" + api_.device_name(context_) + ")";
  }

  void cast(std::span<const CastEntry> table, std::span<CastCounts> counts) override {
    check(table, counts);
    call(api_.cast, input(table), CudaArray<CastCounts>{counts.data(), counts.size()});
  }
  void restore(std::span<const RestoreEntry> table, std::span<CastCounts> counts) override {
    check(table, counts);
    call(api_.restore, input(table), CudaArray<CastCounts>{counts.data(), counts.size()});
  }
  void unscale_norm(std::span<const GradientEntry> table, float inverse_scale, std::span<GradientNorm> results) override {
    check(table, results);
    std::vector<GradientNorm> norms(results.size());
    call(api_.unscale_norm, input(table), inverse_scale, CudaArray<GradientNorm>{norms.data(), norms.size()});
    for (size_t i = 0; i < norms.size(); ++i) {
      add(results[i].squares, norms[i].squares);
      results[i].nonfinite += norms[i].nonfinite;
    }
  }
  void adam(std::span<const AdamEntry> table, std::span<const AdamScalars> scalars) override {
    check(table, scalars);
    call(api_.adam, input(table), input(scalars));
  }
  void sgd(std::span<const SgdEntry> table, std::span<const SgdScalars> scalars) override {
    check(table, scalars);
    call(api_.sgd, input(table), input(scalars));
  }

  CopyTicket copy(std::span<const CopyEntry> table, Direction direction) override {
    check(table);
    return call(api_.copy, input(table), static_cast<uint32_t>(direction));
  }
  void wait(CopyTicket ticket) override { call(api_.wait, ticket); }
  void fence(CopyTicket ticket) override { call(api_.fence, ticket); }
  void synchronize() override { call(api_.synchronize); }

  void* allocate(size_t bytes) override { return call(api_.allocate, uint64_t{bytes}, uint32_t{0}); }
  void* allocate_host(size_t bytes) override { return call(api_.allocate, uint64_t{bytes}, uint32_t{1}); }
  void release(void* memory) noexcept override { api_.release(context_, memory, 0); }
  void release_host(void* memory) noexcept override { api_.release(context_, memory, 1); }

 private:
  template <class Result, class... Parameters, class... Arguments>
  Result call(Result (*function)(CudaContext*, Parameters...), Arguments... arguments) {
    CudaProblem problem{};
    if constexpr (std::is_void_v<Result>) {
      function(context_, arguments..., &problem);
      require(problem);
    } else {
      const Result result = function(context_, arguments..., &problem);
      require(problem);
      return result;
    }
  }

  const CudaApi& api_;
  int ordinal_;
  CudaContext* context_;
};

}  // namespace

std::unique_ptr<Kernels> cuda_kernels(int ordinal, void* stream, uint32_t blocks) {
  return std::make_unique<CudaKernels>(load_cuda_plugin(cuda_plugin_path()), ordinal, stream, blocks);
}

}  // namespace fsdpctl::kernels
