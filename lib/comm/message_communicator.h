// Collectives made of messages between two ranks: the communicator of everything that is not NCCL.
//
// An operation starts with a header to every rank and, without waiting for theirs, the data itself, under a tag that is
// a hash of the header: where headers agree the data flows at once, where they do not it never finds its receiver, and
// the headers tell why.
#pragma once

#include <memory>

#include "lib/comm/communicator.h"
#include "lib/comm/transport.h"

namespace fsdpctl {

struct CommunicatorOptions {
  Milliseconds timeout{600'000};   // for the other ranks to come to an operation, and for each to finish it
  // After a connection has ended: for the one who knows why to write it down. It is there sooner where that rank
  // reports its own error or its connection to the store ends, too.
  Milliseconds grace{3'000};
  // Of a communicator of some of the ranks: its name, and which ranks of the run its ranks are, for messages.
  std::string group = "world";
  std::vector<int> global_ranks;   // empty: all, each itself
};

std::unique_ptr<Communicator> make_message_communicator(std::unique_ptr<Transport> transport, std::shared_ptr<Store> store,
                                                        const CommunicatorOptions& options = {});

}  // namespace fsdpctl
