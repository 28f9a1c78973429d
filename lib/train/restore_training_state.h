// Resuming: a checkpoint of any format and any world size into the live state of a run. Each rank reads what it holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/ckpt/format.h"
#include "lib/comm/communicator.h"
#include "lib/train/training_state.h"

namespace fsdpctl::train {

struct RestoreOptions {
  bool allow_partial = false;        // what the checkpoint lacks starts anew: moments, schedule, scaler, position in the data
  bool masters_from_model = false;   // 16-bit weights are widened where there are no FP32 ones
  bool other_scaler = false;         // take the loss scale although the scaler is configured differently
  // Keys of the configuration (`model`, `optimizer.kind`), with all below them, of which a change is refused.
  std::vector<std::string> fixed_config;
  // Others that say nothing of the training itself (where the output goes): not even listed.
  std::vector<std::string> free_config;
};

struct ConfigChange {
  std::string key;                   // "optimizer.lr"
  std::string saved, now;            // as JSON; empty: not there
};

struct RestoreReport {
  std::string format;                // that was read
  uint64_t step = 0, samples = 0;    // what the state has now
  bool optimizer = false;            // moments were taken
  std::vector<std::string> started_anew;   // by name: "optimizer.state.layers.0.weight", "scheduler", "samples"
  std::vector<std::string> not_used;       // in the checkpoint, but not in this run
  std::vector<std::string> widened;        // names of 16-bit weights that became masters
  std::vector<std::string> assumed;        // what the checkpoint does not say, in sentences
  std::vector<ConfigChange> config_changes;   // of keys; where the checkpoint has no configuration, of its param groups
};

// Collective over `world`, all ranks of the run. Every rank checks all it needs and reads it, ranks agree, then all change their state. An
// Error leaves the state as it was, on every rank: refused (names or shapes differ, listed; state is missing; weights of 16 bits;
// a fixed key of the configuration differs; another optimizer or scaler), damaged, failed.
// Hyperparameters, the schedule's and the scaler's configuration stay this run's; pieces of `checkpoint` are resolved here.
RestoreReport restore_training_state(Checkpoint& checkpoint, TrainingState& state, Communicator& world, const RestoreOptions& options = {});

// The newest complete checkpoint of a run directory (or the checkpoint that `path` is), and a sentence for each newer one that was
// passed over, in Opened::passed_over. Not collective: let one rank look, and tell the others Opened::chosen.
// Error(failed) where there is none.
Opened find_latest(const FormatList& formats, const std::string& run_directory, FindingSink& sink);

}  // namespace fsdpctl::train
