// Messages between processes by Gloo, which comes with LibTorch. A target of its own, fsdpctl_comm_gloo.
#pragma once

#include <memory>
#include <string>

#include "lib/comm/launch.h"
#include "lib/comm/transport.h"

namespace fsdpctl {

struct GlooOptions {
  std::string group = "world";      // names the group's keys in the store: one for each set of ranks
  std::string address;              // this machine's, as the other ranks reach it
  std::string interface;            // or the network interface that has it, where not empty
  Milliseconds connect{60'000};     // for all ranks to come
};

// Connects all `size` ranks with each other; every rank of the group has to call it. Error(failed) naming the rank that
// failed or did not come in time.
std::unique_ptr<Transport> make_gloo_transport(std::shared_ptr<Store> store, int rank, int size, const GlooOptions& options);

// Under torchrun, its agent listens at MASTER_PORT, with a store that speaks LibTorch's language. Rank 0 leaves there
// where our store is served ("HOST:PORT"); the others read it. Error(failed) where that does not come in time.
void leave_at_agent(const Launch& launch, const std::string& place, Milliseconds timeout);
std::string read_from_agent(const Launch& launch, Milliseconds timeout);

}  // namespace fsdpctl
