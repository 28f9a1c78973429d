#include "lib/comm/launch.h"

#include <fmt/format.h>

#include <charconv>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

// Names of what each launcher sets. Where a local name is empty, the launcher does not say.
struct Names {
  Launcher launcher;
  const char *rank, *world_size, *local_rank, *local_world_size;
};

constexpr Names kNames[] = {
    {Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::slurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};

constexpr int64_t kMostRanks = 1'000'000;

[[noreturn]] void refuse(const char* name, std::string expected, std::string found) {
  throw Error(Exit::usage, "impossible value in the environment").key(name).saw(std::move(expected), std::move(found));
}

class Reader {
 public:
  explicit Reader(const Variables& variable) : variable_(variable) {}

  bool has(const char* name) const { return variable_(name).has_value(); }
  std::string text(const char* name) const { return variable_(name).value_or(""); }

  int number(const char* name, int64_t least, int64_t most, const char* because) const {
    const std::optional<std::string> value = variable_(name);
    const std::string expected = fmt::format("a number from {} to {}{}", least, most, because);
    if (!value) throw Error(Exit::usage, "variable is missing in the environment").key(name).saw(expected, "nothing");
    int64_t result = 0;
    const auto [end, code] = std::from_chars(value->data(), value->data() + value->size(), result);
    if (code != std::errc() || end != value->data() + value->size() || result < least || result > most) {
      refuse(name, expected, fmt::format("'{}'", *value));
    }
    return static_cast<int>(result);
  }

 private:
  const Variables& variable_;
};

void read_names(const Reader& read, const Names& names, Launch& launch) {
  launch.launcher = names.launcher;
  launch.world_size = read.number(names.world_size, 1, kMostRanks, "");
  const std::string below = fmt::format(" ({} is {})", names.world_size, launch.world_size);
  launch.rank = read.number(names.rank, 0, launch.world_size - 1, below.c_str());
  if (names.local_world_size && read.has(names.local_world_size)) {
    launch.local_world_size = read.number(names.local_world_size, 1, launch.world_size, below.c_str());
  } else {
    launch.local_world_size = launch.world_size;
  }
  // Without a local rank all ranks are taken to be on one machine; that is checked, as it decides the device.
  if (read.has(names.local_rank)) {
    launch.local_rank = read.number(names.local_rank, 0, launch.local_world_size - 1, " (ranks of this machine)");
  } else if (launch.rank < launch.local_world_size) {
    launch.local_rank = launch.rank;
  } else {
    read.number(names.local_rank, 0, launch.local_world_size - 1, " (ranks of this machine)");
  }
  if (launch.local_rank > launch.rank) {
    refuse(names.local_rank, fmt::format("at most {}, the value of {}", launch.rank, names.rank),
           std::to_string(launch.local_rank));
  }
}

// "node[003-007,9],other" -> "node003".
std::string first_host(std::string_view list) {
  const size_t bracket = list.find_first_of("[,");
  std::string host(list.substr(0, bracket));
  if (bracket == list.npos || list[bracket] == ',') return host;
  const std::string_view rest = list.substr(bracket + 1);
  return host += rest.substr(0, rest.find_first_of(",-]"));
}

// Where SLURM is not told an address, all ranks can derive the same one from what they know of the job.
void derive_slurm_address(const Reader& read, Launch& launch) {
  const char* list = read.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  if (launch.address.empty() && read.has(list)) launch.address = first_host(read.text(list));
  if (launch.port == 0 && read.has("SLURM_JOB_ID")) {
    const int job = read.number("SLURM_JOB_ID", 0, INT32_MAX, "");
    launch.port = static_cast<uint16_t>(20'000 + job % 20'000);
  }
}

void read_address(const Reader& read, Launch& launch) {
  launch.address = read.text("MASTER_ADDR");
  if (read.has("MASTER_PORT")) launch.port = static_cast<uint16_t>(read.number("MASTER_PORT", 1, 65'535, ""));
  if (launch.launcher == Launcher::slurm) derive_slurm_address(read, launch);
  if (launch.world_size == 1) return;
  for (const auto& [name, missing] : {std::pair("MASTER_ADDR", launch.address.empty()), std::pair("MASTER_PORT", launch.port == 0)}) {
    if (!missing) continue;
    throw Error(Exit::usage, "variable is missing in the environment")
        .key(name)
        .saw("where rank 0 can be reached, the same on all ranks", "nothing")
        .try_(launch.launcher == Launcher::open_mpi ? "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 ..."
                                                    : "export MASTER_ADDR=HOST MASTER_PORT=29500");
  }
}

void read_run_id(const Reader& read, Launch& launch) {
  switch (launch.launcher) {
    case Launcher::none: return;
    case Launcher::torchrun:
      launch.store_is_served = read.text(kStoreIsServed) == "1";
      launch.agent_has_port = read.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
      launch.run_id = launch.store_is_served
                          ? read.text(kRunId)
                          : read.text("TORCHELASTIC_RUN_ID") + "/" + read.text("TORCHELASTIC_RESTART_COUNT");
      return;
    case Launcher::open_mpi: launch.run_id = read.text("PMIX_NAMESPACE"); return;
    case Launcher::slurm: launch.run_id = read.text("SLURM_JOB_ID") + "." + read.text("SLURM_STEP_ID"); return;
  }
}

}  // namespace

Launch read_ranks(const Variables& variable) {
  const Reader read(variable);
  Launch launch;
  for (const Names& names : kNames) {
    // SLURM sets its variables in every job, also outside of srun; only a step's tasks are ranks.
    if (names.launcher == Launcher::slurm && !read.has("SLURM_STEP_ID")) continue;
    if (!read.has(names.rank) && !read.has(names.world_size)) continue;
    read_names(read, names, launch);
    break;
  }
  return launch;
}

Launch read_launch(const Variables& variable) {
  Launch launch = read_ranks(variable);
  if (launch.launcher == Launcher::none) return launch;
  const Reader read(variable);
  read_address(read, launch);
  read_run_id(read, launch);
  return launch;
}

}  // namespace fsdpctl
