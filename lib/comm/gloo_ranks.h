// Ranks that are processes: from what the launcher said to a communicator that works.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/comm/launch.h"
#include "lib/comm/message_communicator.h"
#include "lib/comm/tcp_store.h"

namespace fsdpctl {

struct GlooRanksOptions {
  CommunicatorOptions communicator;
  Milliseconds connect{60'000};     // for all ranks to come
};

// This process as one of the ranks. Connects in the constructor, which every rank has to call; throws what went wrong,
// naming the rank, where not all come. One rank alone needs neither store nor network.
//
// FSDPCTL_COMM_FAULT (faulty.h) makes the communicator of all ranks fail, for tests.
class GlooRanks {
 public:
  explicit GlooRanks(const Launch& launch, const GlooRanksOptions& options = {});
  // Without close(): the other ranks see this one die, where they know of no other failure. The rank that serves the store
  // waits some seconds for the others to leave.
  ~GlooRanks();
  GlooRanks(const GlooRanks&) = delete;

  // The end, when all is well: waits for all ranks to come here, then leaves.
  void close();

  Communicator& world() { return *world_; }
  const std::shared_ptr<Store>& store() const { return store_; }
  // A communicator of some of the ranks, in this order, this one among them. Called by each of them, with one name.
  std::unique_ptr<Communicator> group(const std::string& name, const std::vector<int>& ranks) const;

 private:
  std::unique_ptr<Transport> come();
  void open_store();
  void leave();
  std::unique_ptr<Transport> connect(const std::string& group, int rank, int size) const;

  const Launch launch_;
  const GlooRanksOptions options_;
  std::unique_ptr<StoreServer> server_;     // of rank 0, where no launcher serves it
  std::shared_ptr<Store> store_;
  std::shared_ptr<TcpStore> tcp_store_;     // the same, of more than one rank
  std::unique_ptr<Communicator> world_;
};

}  // namespace fsdpctl
