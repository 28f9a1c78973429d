// What an optimizer says of itself in state dicts and checkpoints, besides tensors, as torch.optim and torch.amp spell it. Pure.
#pragma once

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "lib/base/value.h"
#include "lib/train/grad_scaler.h"
#include "lib/train/lr_schedule.h"
#include "lib/train/param_groups.h"

namespace fsdpctl::train {

Value dict_value(std::initializer_list<std::pair<const char*, Value>> entries);
Value list_value(std::vector<Value> items);
Value count_value(uint64_t value);

// An item of param_groups; `params` is the last of its keys.
Value group_value(OptimizerKind kind, const ParamGroup& group, std::vector<Value> params);
Value scaler_value(const GradScalerOptions& options);   // how it is configured
Value schedule_value(const LrSchedule& schedule, std::span<const ParamGroup> groups);

}  // namespace fsdpctl::train
