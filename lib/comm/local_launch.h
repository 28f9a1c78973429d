// `--nproc N`: all ranks on this machine, as children of this process, which serves their store and outlives them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/finding.h"
#include "lib/comm/store.h"

namespace fsdpctl {

struct LocalLaunch {
  int nproc = 1;
  std::vector<std::string> argv;          // of every rank; argv[0] is a path
  std::vector<std::string> environment;   // "NAME=value", set on top of ours
  // After the first failure, for the others to notice, say so and end by themselves; then they are killed.
  Milliseconds grace{10'000};
};

struct LocalOutcome {
  Exit code = Exit::ok;                 // of the rank that failed first; failed where a signal ended it
  std::optional<Finding> finding;       // which rank failed, and how; where.rank is set
};

// Starts the ranks with torchrun's variables, passes SIGTERM and SIGINT on to them, and waits for all: when it returns,
// none is left. They end with this process, too, however it ends. Error(usage) for an impossible nproc, Error(failed)
// where a rank cannot be started. One call at a time, from a process whose other threads do not mind that SIGTERM,
// SIGINT and SIGCHLD are blocked in this one meanwhile.
LocalOutcome launch_local(const LocalLaunch& launch);

}  // namespace fsdpctl
