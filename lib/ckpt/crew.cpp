#include "lib/ckpt/crew.h"

#include <algorithm>

#include "lib/base/parallel.h"

namespace fsdpctl {

void Crew::run(int threads, uint64_t jobs, const std::function<Worker()>& make_worker) {
  std::atomic<uint64_t> next = 0;
  parallel_for(static_cast<size_t>(threads), threads, [&](size_t) {
    try {
      const Worker worker = make_worker();
      while (!stop_.load(std::memory_order_relaxed)) {
        const uint64_t job = next.fetch_add(1);
        if (job >= jobs) break;
        worker(job);
      }
    } catch (...) {
      keep_error();
    }
  });
  if (error_) std::rethrow_exception(error_);
  if (stop_) throw Error(Exit::interrupted, "interrupted");
}

void Crew::keep_error() {
  const std::lock_guard lock(mutex_);
  // Those that stop because of the first error, or of a cancel, end with an error too.
  if (!stop_.exchange(true)) error_ = std::current_exception();
}

void Crew::advance(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  if (options_.progress) options_.progress(done_, total_);
  if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) stop_ = true;
}

CrewSize crew_size(const EngineOptions& options, int default_threads, uint64_t jobs, uint64_t least_memory) {
  uint64_t threads = static_cast<uint64_t>(options.threads > 0 ? options.threads : default_threads);
  threads = std::min({threads, std::max<uint64_t>(jobs, 1), std::max<uint64_t>(options.max_memory / least_memory, 1)});
  return {static_cast<int>(threads), std::max(options.max_memory / threads, least_memory)};
}

}  // namespace fsdpctl
