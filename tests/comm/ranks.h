// Running a body on every rank of threads, and what came of each.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "lib/comm/faulty.h"
#include "lib/comm/message_communicator.h"
#include "lib/comm/threads.h"

namespace fsdpctl {

struct RankResults {
  std::vector<std::optional<Finding>> findings;    // of the Error that ended a rank
};

inline CommunicatorOptions quick() {
  CommunicatorOptions options;
  options.timeout = Milliseconds(20'000);
  options.grace = Milliseconds(50);
  return options;
}

// `fault` is rank `faulty_rank`'s.
inline RankResults run_ranks(int size, const std::function<void(Communicator&)>& body,
                             const CommunicatorOptions& options = quick(), int faulty_rank = -1, Fault fault = {}) {
  ThreadRanks ranks(size);
  RankResults results;
  results.findings.resize(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Transport> transport = ranks.transport(rank);
      if (rank == faulty_rank) transport = make_faulty(std::move(transport), fault);
      const auto communicator = make_message_communicator(std::move(transport), ranks.shared_store(), options);
      try {
        body(*communicator);
      } catch (const Error& e) {
        results.findings[static_cast<size_t>(rank)] = e.finding();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace fsdpctl
