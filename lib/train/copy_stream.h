// A stream of copies made by a worker thread, in the order in which they were started, beside the work of whoever starts
// them: what a GPU's copy stream is, where there is no GPU.
//
// start() and wait() are thread-safe. Memory given to start() must stay, and what is read unchanged, until wait().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/table.h"

namespace fsdpctl::train {

class CopyStream {
 public:
  explicit CopyStream(std::chrono::microseconds delay = {}) : delay_(delay) {}   // delay: before each start()'s copies
  ~CopyStream();                                            // finishes what was started
  CopyStream(const CopyStream&) = delete;

  uint64_t start(std::vector<kernels::CopyEntry> table);    // returns at once; the ticket is never 0
  void wait(uint64_t ticket);                               // that one, and those before it

 private:
  void work();

  const std::chrono::microseconds delay_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<kernels::CopyEntry>> waiting_;
  uint64_t started_ = 0, finished_ = 0;
  bool ending_ = false;
  std::thread worker_;   // from the first start() on
};

}  // namespace fsdpctl::train
