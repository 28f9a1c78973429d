// Isolated: work of a C library on bytes that nobody vouches for, in a child process.
//
// HDF5's parser is 300,000 lines of C with a history of crashes on damaged files. A child that crashes, runs wild or eats
// memory is an Error(damaged) here and nothing else. The child is forked, not executed: it starts in a millisecond, sees the caller's
// memory as it was, and must not expect other threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fsdpctl {

struct IsolationLimits {
  uint64_t memory = 1ull << 30;     // bytes beyond what the process has now
  uint32_t cpu_seconds = 600;
};

// Runs `work` in a child; what it sends arrives in `receive`, in order and in chunks of any size, while it works. An
// fsdpctl::Error that `work` throws is thrown here. `file_name` is for messages.
using Send = std::function<void(std::string_view bytes)>;
void run_isolated(const std::string& file_name, const std::function<void(const Send& send)>& work,
                  const std::function<void(std::string_view bytes)>& receive, const IsolationLimits& limits = {});

}  // namespace fsdpctl
