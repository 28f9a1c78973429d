// Ranks that are threads of one process, for tests: messages are copies from buffer to buffer.
#pragma once

#include <memory>

#include "lib/comm/transport.h"

namespace fsdpctl {

// The ends of `size` ranks, to be used by a thread each.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size);
  ~ThreadRanks();
  std::unique_ptr<Transport> transport(int rank);   // once for each rank; may outlive this object
  Store& store() { return *store_; }
  std::shared_ptr<Store> shared_store() { return store_; }

 private:
  struct Hub;
  class End;
  class Letter;
  std::shared_ptr<Hub> hub_;
  std::shared_ptr<Store> store_;
};

}  // namespace fsdpctl
