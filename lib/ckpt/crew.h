// Crew: the threads of one operation of the engine. They take numbered jobs in order; the first error, or a cancel,
// soon stops them all.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

#include "lib/ckpt/engine.h"

namespace fsdpctl {

class Crew {
 public:
  using Worker = std::function<void(uint64_t job)>;

  explicit Crew(const EngineOptions& options, uint64_t total_bytes = 0) : options_(options), total_(total_bytes) {}
  void expect(uint64_t total_bytes) { total_ = total_bytes; }   // for progress; before run()

  // Calls make_worker once in each thread, and what it returns for every job in [0, jobs). Throws the first error.
  void run(int threads, uint64_t jobs, const std::function<Worker()>& make_worker);

  // ---- for workers, from any thread
  const std::atomic<bool>* stop() const { return &stop_; }   // true: leave off
  void advance(uint64_t bytes);                              // reports progress, looks for a cancel

 private:
  void keep_error();

  const EngineOptions& options_;
  uint64_t total_;
  std::mutex mutex_;
  uint64_t done_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> stop_ = false;
};

// How many threads, and what each may take, so that all stay below options.max_memory.
struct CrewSize {
  int threads = 1;
  uint64_t memory = 0;   // of one thread
};
CrewSize crew_size(const EngineOptions& options, int default_threads, uint64_t jobs, uint64_t least_memory);

}  // namespace fsdpctl
