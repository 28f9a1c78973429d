#include "lib/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fsdpctl {

int thread_count(int wanted) {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void parallel_for(size_t count, int threads, const std::function<void(size_t)>& body) {
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::exception_ptr thrown;
  size_t thrown_at = count;
  const auto work = [&] {
    while (!stop.load()) {
      const size_t i = next.fetch_add(1);
      if (i >= count) return;
      try {
        body(i);
      } catch (...) {
        stop = true;   // lower indices were begun before and will be finished
        const std::lock_guard lock(mutex);
        if (i < thrown_at) {
          thrown_at = i;
          thrown = std::current_exception();
        }
      }
    }
  };
  std::vector<std::thread> helpers;
  for (size_t n = std::min(static_cast<size_t>(thread_count(threads)), count); helpers.size() + 1 < n;) {
    try {
      helpers.emplace_back(work);
    } catch (const std::system_error&) {
      break;   // no more threads to be had: fewer do
    }
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace fsdpctl
