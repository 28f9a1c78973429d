#include "lib/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fsdpctl {
namespace {

TEST(Parallel, RunsEachIndexOnce) {
  for (int threads : {0, 1, 2, 7}) {
    std::vector<std::atomic<int>> done(100);
    parallel_for(done.size(), threads, [&](size_t i) { ++done[i]; });
    for (const auto& n : done) EXPECT_EQ(n, 1);
  }
  parallel_for(0, 4, [](size_t) { FAIL(); });
}

TEST(Parallel, TheLowestExceptionIsThrownWhateverTheOrder) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> done{0};
    try {
      parallel_for(1000, 4, [&](size_t i) {
        ++done;
        if (i == 3) std::this_thread::yield();   // lets 4 and 5 be first
        if (i >= 3) throw std::runtime_error(std::to_string(i));
      });
      ADD_FAILURE();
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "3");
    }
    EXPECT_LT(done, 10);
  }
}

}  // namespace
}  // namespace fsdpctl
