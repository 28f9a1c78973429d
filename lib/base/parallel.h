// Runs a body for each of many indices on a few threads.
#pragma once

#include <cstddef>
#include <functional>

namespace fsdpctl {

// 0 or less means one thread per processor.
int thread_count(int wanted);

// Calls body(0) ... body(count - 1), begun in this order, each once, on at most `threads` threads (the caller's is one).
// The first exception ends it: what was begun is finished, nothing more is begun, and of the exceptions that were
// thrown the one of the lowest index is thrown again. So which one it is does not depend on the threads.
void parallel_for(size_t count, int threads, const std::function<void(size_t)>& body);

}  // namespace fsdpctl
