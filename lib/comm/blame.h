// Who made the ranks wait. A rank that waits in vain only knows for whom; that one may itself be waiting for another.
// Private to lib/comm.
#pragma once

#include <string>

#include "lib/comm/store.h"

namespace fsdpctl {

// What a rank that waited in vain says: the rank that it waited for is finding.where.rank.
struct Claim {
  std::string group;         // of the communicator
  uint64_t step = 0;         // that it waits in, counted in it from the start
  Finding finding;
};

// Lays `mine` before the other ranks, leaves them `time` to lay theirs, and follows them to the rank that waits for
// nobody: of ranks that wait for each other, the one who waits in the earliest step is right.
Finding settle_blame(Store& store, int rank, const Claim& mine, Milliseconds time);

}  // namespace fsdpctl
