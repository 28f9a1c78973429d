// What an optimizer's state dict says, parameter by parameter, once its form was checked: one of ours, or LightRFT's, which
// has neither names nor offsets. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/train/grad_scaler.h"
#include "lib/train/param_groups.h"
#include "lib/train/state_dict.h"

namespace fsdpctl::train {

// Pointers go into the dict.
struct SavedParameter {
  std::string name;
  size_t group = 0;
  const StateTensor* master = nullptr;
  std::vector<const StateTensor*> moments;     // of the same shape; none before the first step
  uint64_t step = 0;                           // sgd, which does not count: 1 where there is a momentum
  std::vector<int64_t> global_shape;           // these two only with meta
  uint64_t begin = 0;
};

struct SavedGroup {
  GroupOptions options;
  double initial_lr = 0;
};

struct SavedOptimizer {
  std::vector<SavedParameter> parameters;      // by id
  std::vector<SavedGroup> groups;
  double scale = 0;
  int64_t growth_step = 0, hysteresis_step = 0;
  bool has_meta = false;                       // the rest only with it
  GradScalerOptions scaler;
  double max_norm = 0;
  uint64_t steps_taken = 0;                    // by the schedule
};

// An item of param_groups, its `params` apart. Errors as below.
SavedGroup read_saved_group(const Value& group, OptimizerKind kind, const std::string& path);

// `names`: of the parameters, by id, for a dict without meta. Error(damaged) for what is missing or malformed, with its
// path in the dict; Error(refused) for another optimizer, for an option that this one lacks, and for a dict without meta
// when there are not as many names.
SavedOptimizer read_saved_optimizer(const StateDict& dict, OptimizerKind kind, std::span<const std::string> names);

}  // namespace fsdpctl::train
