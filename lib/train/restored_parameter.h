// Between a checkpoint and the live state: what was found and read of each parameter. Private to lib/train.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/train/fsdp_optimizer.h"
#include "lib/train/saved_state.h"
#include "lib/train/state_dict.h"

namespace fsdpctl::train {

// A parameter of the model, where it is in the checkpoint, and what is read of it.
struct Restored {
  ParameterShard* shard = nullptr;
  std::optional<size_t> id;            // in the optimizer
  TensorIndex weights = kNoTensor;
  std::vector<TensorIndex> ties;       // what its other names are in the checkpoint
  const SavedParameterState* state = nullptr;   // null: the checkpoint has none
  uint64_t step = 0;
  std::vector<TensorIndex> moments;    // none: starts without
  StateTensor master;                  // or the values of a frozen one
  std::vector<StateTensor> moment_values;
};

// As the optimizer loads it: its own groups, with `parameters`' masters and moments, and the scaler and schedule of `saved`; what is
// not saved is as at the beginning of a run. Tensors are shared.
StateDict restored_state_dict(const FSDPadaptOptimizer& optimizer, std::span<const Restored> parameters, const SavedState& saved);

}  // namespace fsdpctl::train
