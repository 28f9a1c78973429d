// Training state: what a checkpoint says about the run besides weights and moments. Loss scaler, learning rate
// schedulers, random number generators, counters, recognised by the fields of their state dicts; and the optimizer's
// step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/parts.h"

namespace fsdpctl {

enum class StateKind : uint8_t { scaler, scheduler, rng, counter, other };

struct StateEntry {
  StateKind kind = StateKind::other;
  std::string path;     // where it is in the tree
  std::string summary;  // "scale 1024, growth tracker 3 of 2000"; may be empty
  uint64_t leaves = 0;  // leaves of the tree below it
};

// All state outside the model and the optimizers, in tree order; what no rule recognises is `other`, one entry for each
// outermost such value.
std::vector<StateEntry> find_training_state(const Checkpoint& checkpoint, const Parts& parts);

// The `step` field over an optimizer's parameters. Reads at most `most` tensors (resolving only their pieces).
struct StepRange {
  double lowest = 0, highest = 0;
  uint64_t read = 0, total = 0;
};
// nullopt when there is no such field. Error(damaged) when a value cannot be read.
std::optional<StepRange> optimizer_steps(Checkpoint& checkpoint, const Parts& parts, int optimizer, uint64_t most,
                                         const EngineOptions& options);

}  // namespace fsdpctl
