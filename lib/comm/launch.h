// Who this process is among its ranks, as whoever started it says in the environment: torchrun, `--nproc` (which speaks
// torchrun's language), SLURM or Open MPI.
#pragma once

#include <cstdint>
#include <string>

#include "lib/base/variables.h"

namespace fsdpctl {

enum class Launcher : uint8_t { none, torchrun, open_mpi, slurm };

struct Launch {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;          // among the ranks of this machine
  int local_world_size = 1;
  std::string address;         // where the store is served, by rank 0 unless `store_is_served`; empty for one rank
  uint16_t port = 0;
  std::string run_id;          // equal for all ranks of a run, so that two runs on one port do not mix; may be empty
  bool store_is_served = false;   // our own launcher serves it and outlives the ranks
  bool agent_has_port = false;    // torchrun's agent listens at `port` with a store of its own: only to be asked for ours
};

// One rank where nobody has set anything. The first launcher in the order of the enum that has set its variables counts,
// as inside of `srun torchrun`. Error(usage) naming the variable where one is missing, no number or contradicts another.
Launch read_launch(const Variables& variable = process_variable);

// The ranks alone, for processes that share work and not a store: `address`, `port` and `run_id` stay empty, and nothing of them
// need be set.
Launch read_ranks(const Variables& variable = process_variable);

// The variables that `--nproc` gives its ranks beyond torchrun's.
inline constexpr const char* kStoreIsServed = "FSDPCTL_STORE_IS_SERVED";
inline constexpr const char* kRunId = "FSDPCTL_RUN_ID";

}  // namespace fsdpctl
