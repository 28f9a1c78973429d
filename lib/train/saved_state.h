// What a checkpoint, whoever wrote it, says about a run: by our names, found by what things are rather than what they are called.
// Private to lib/train.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/parts.h"
#include "lib/train/grad_scaler.h"
#include "lib/train/saved_optimizer.h"

namespace fsdpctl::train {

// One field of a parameter's state.
struct SavedField {
  TensorIndex tensor = kNoTensor;
  const Value* value = nullptr;          // where it is no tensor
};

struct SavedParameterState {
  std::optional<SavedGroup> group;       // of the param group that lists it
  std::string group_path;
  std::map<std::string, SavedField, std::less<>> fields;
};

struct SavedScaler {
  double scale = 0;
  int64_t growth_step = 0, hysteresis_step = 0;
  GradScalerOptions options;             // those that are not recorded: as given
};

// Pointers go into the checkpoint, which must outlive it.
struct SavedState {
  std::map<std::string, TensorIndex, std::less<>> model;                  // by FQN
  std::map<std::string, SavedParameterState, std::less<>> optimizer;      // by FQN
  std::vector<std::string> assumed;
  std::optional<SavedScaler> scaler;
  std::optional<int64_t> schedule_taken, step, samples;
  std::optional<std::string> config;
  std::vector<std::string> others;       // paths of state that means nothing to us
};

// `trainable`: FQNs of the model, for an optimizer that knows parameters by number only. `scaler`: this run's.
// Error(refused) where it is ambiguous, for another optimizer than `kind`, and for numbers that cannot be made names; Error(damaged)
// for state that is malformed.
SavedState read_saved_state(const Checkpoint& checkpoint, OptimizerKind kind, const std::vector<std::string>& trainable,
                            const GradScalerOptions& scaler);

}  // namespace fsdpctl::train
