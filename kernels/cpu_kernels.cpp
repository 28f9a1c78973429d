// Kernels on the CPU: cuts tables into jobs for threads and calls the loops of an instruction set.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu_level.h"
#include "kernels/kernels.h"
#include "lib/base/finding.h"
#include "lib/base/parallel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsdpctl::kernels {
namespace {

constexpr uint64_t kJob = 64 << 10;             // elements (bytes for copies: times 64)
constexpr uint64_t kStreamed = 16 << 20;        // bytes of output from which on caches do not help
constexpr std::align_val_t kAlignment{256};

template <class Entry>
uint64_t length(const Entry& entry) { return entry.count; }
uint64_t length(const CopyEntry& entry) { return entry.bytes; }
uint64_t length(const RestoreEntry& entry) { return entry.size[0] * entry.size[1] * entry.size[2]; }   // runs

// Whether the rows' outputs, `size(row)` bytes an element, are more than caches hold.
template <class Entry, class Size>
bool is_large(std::span<const Entry> table, Size size) {
  uint64_t bytes = 0;
  for (const Entry& entry : table) bytes += entry.count * size(entry);
  return bytes >= kStreamed;
}

// Calls body(row, begin, end, job) for ranges that cover every row, from several threads: the rows laid end to end are cut into
// jobs of `job_size` elements.
template <class Entry, class Body>
void for_ranges(std::span<const Entry> table, uint64_t job_size, int threads, Body body) {
  std::vector<uint64_t> first(table.size() + 1);
  for (size_t i = 0; i < table.size(); ++i) first[i + 1] = first[i] + length(table[i]);
  const uint64_t total = first.back();
  const uint64_t jobs = (total + job_size - 1) / job_size;
  parallel_for(jobs, threads, [&](size_t job) {
    const uint64_t begin = job * job_size, end = std::min(begin + job_size, total);
    auto row = static_cast<size_t>(std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1);
    for (; row < table.size() && first[row] < end; ++row) {
      const uint64_t from = std::max(begin, first[row]), to = std::min(end, first[row + 1]);
      if (from < to) body(row, from - first[row], to - first[row]);
    }
  });
}

template <class Entry>
uint32_t parameter_size(const Entry& entry) { return entry.parameter != nullptr ? float_size(entry.parameter_type) : 0; }

class CpuKernels final : public Kernels {
 public:
  CpuKernels(int threads, const CpuLoops& loops) : threads_(thread_count(threads)), loops_(loops) {}

  std::string name() const override { return "cpu"; }

  void cast(std::span<const CastEntry> table, std::span<CastCounts> counts) override {
    check(table, counts);
    Counter counter(counts);
    const bool stream = is_large(table, [](const CastEntry& e) { return float_size(e.target_type); });
    for_ranges(table, kJob, threads_, [&](size_t row, uint64_t begin, uint64_t end) {
      const CastEntry& e = table[row];
      CastCounts here{};
      loops_.cast(static_cast<const std::byte*>(e.source) + begin * float_size(e.source_type), e.source_type,
                  static_cast<std::byte*>(e.target) + begin * float_size(e.target_type), e.target_type, end - begin,
                  stream, counter.wanted() ? &here : nullptr);
      counter.add(row, here);
    });
  }

  void restore(std::span<const RestoreEntry> table, std::span<CastCounts> counts) override {
    check(table, counts);
    Counter counter(counts);
    uint64_t longest = 1;
    for (const RestoreEntry& e : table) longest = std::max(longest, e.size[3]);
    for_ranges(table, std::max<uint64_t>(1, kJob / longest), threads_, [&](size_t row, uint64_t begin, uint64_t end) {
      CastCounts here{};
      for (uint64_t run = begin; run < end; ++run) restore_run(table[row], run, counter.wanted() ? &here : nullptr);
      counter.add(row, here);
    });
  }

  void unscale_norm(std::span<const GradientEntry> table, float inverse_scale, std::span<GradientNorm> results) override {
    check(table, results);
    std::mutex mutex;
    const bool stream = is_large(table, [](const GradientEntry& e) { return e.unscaled != nullptr ? 4u : 0u; });
    for_ranges(table, kJob, threads_, [&](size_t row, uint64_t begin, uint64_t end) {
      GradientNorm here{};
      loops_.unscale_norm(table[row], begin, end, inverse_scale, stream, here);
      const std::lock_guard lock(mutex);
      GradientNorm& result = results[table[row].result];
      add(result.squares, here.squares);
      result.nonfinite += here.nonfinite;
    });
  }

  void adam(std::span<const AdamEntry> table, std::span<const AdamScalars> scalars) override {
    check(table, scalars);
    const bool stream = is_large(table, parameter_size<AdamEntry>);
    for_ranges(table, kJob, threads_, [&](size_t row, uint64_t begin, uint64_t end) {
      loops_.adam(table[row], begin, end, stream, scalars[table[row].scalars]);
    });
  }

  void sgd(std::span<const SgdEntry> table, std::span<const SgdScalars> scalars) override {
    check(table, scalars);
    const bool stream = is_large(table, parameter_size<SgdEntry>);
    for_ranges(table, kJob, threads_, [&](size_t row, uint64_t begin, uint64_t end) {
      loops_.sgd(table[row], begin, end, stream, scalars[table[row].scalars]);
    });
  }

  CopyTicket copy(std::span<const CopyEntry> table, Direction) override {
    check(table);
    for_ranges(table, kJob * 64, threads_, [&](size_t row, uint64_t begin, uint64_t end) {
      std::memcpy(static_cast<std::byte*>(table[row].target) + begin,
                  static_cast<const std::byte*>(table[row].source) + begin, end - begin);
    });
    return 0;   // done already
  }
  void wait(CopyTicket) override {}
  void fence(CopyTicket) override {}
  void synchronize() override {}

  void* allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr) throw Error(Exit::failed, "out of memory").found_only(std::to_string(bytes) + " bytes");
    return memory;
  }
  void* allocate_host(size_t bytes) override { return allocate(bytes); }
  void release(void* memory) noexcept override { ::operator delete(memory, kAlignment); }
  void release_host(void* memory) noexcept override { release(memory); }

 private:
  // Sums counts per row, from several threads.
  class Counter {
   public:
    explicit Counter(std::span<CastCounts> counts) : counts_(counts) { std::fill(counts.begin(), counts.end(), CastCounts{}); }
    bool wanted() const { return !counts_.empty(); }
    void add(size_t row, const CastCounts& here) {
      if (here.overflowed == 0 && here.underflowed == 0) return;
      const std::lock_guard lock(mutex_);
      counts_[row].overflowed += here.overflowed;
      counts_[row].underflowed += here.underflowed;
    }

   private:
    std::span<CastCounts> counts_;
    std::mutex mutex_;
  };

  void restore_run(const RestoreEntry& e, uint64_t run, CastCounts* counts) const {
    const uint64_t index[3] = {run / e.size[2] / e.size[1], run / e.size[2] % e.size[1], run % e.size[2]};
    uint64_t from = 0, to = 0;
    for (int d = 0; d < 3; ++d) {
      from += index[d] * e.source_stride[d];
      to += index[d] * e.target_stride[d];
    }
    const auto* source = static_cast<const std::byte*>(e.source) + from * float_size(e.source_type);
    auto* target = static_cast<std::byte*>(e.target) + to * float_size(e.target_type);
    if (e.source_stride[3] == 1 && e.target_stride[3] == 1) {
      loops_.cast(source, e.source_type, target, e.target_type, e.size[3], false, counts);
    } else {
      loops_.cast_strided(source, e.source_type, e.source_stride[3], target, e.target_type, e.target_stride[3], e.size[3],
                          false, counts);
    }
  }

  int threads_;
  const CpuLoops& loops_;
};

}  // namespace

CpuLevel best_cpu_level() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c) return CpuLevel::avx2;
#endif
  return CpuLevel::baseline;
}

std::unique_ptr<Kernels> cpu_kernels(int threads, CpuLevel level) {
  if (level > best_cpu_level()) throw Error(Exit::unsupported, "this processor has no AVX2");
#if defined(__x86_64__)
  if (level == CpuLevel::avx2) return std::make_unique<CpuKernels>(threads, kAvx2Loops);
#endif
  return std::make_unique<CpuKernels>(threads, kBaselineLoops);
}

}  // namespace fsdpctl::kernels
