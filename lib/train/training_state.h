// What one rank of a run has that a checkpoint must hold: the sharded model, the optimizer with its loss scaler and learning
// rate schedule, and how far the run is. The trainer owns all of it.
//
// In a checkpoint it is this tree, whatever the format; names are PyTorch's where PyTorch has one:
//
//   model      {fqn: tensor}    the FP32 masters; frozen parameters in the dtype that they are held in. Tied names are one tensor
//   optimizer  state: {fqn: {step, exp_avg, exp_avg_sq} or {momentum_buffer}}, param_groups: [{lr, ..., params: [fqn]}], as
//              torch.distributed.checkpoint.state_dict writes it
//   scheduler  kind, warmup_steps, total_steps, min_lr, base_lrs, last_epoch (steps taken, without skipped ones), _last_lr
//   scaler     torch.amp.GradScaler's scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; initial_scale, min_scale,
//              max_scale, hysteresis, _hysteresis_tracker, dtype, max_norm
//   step       steps done, skipped ones included
//   samples    of the data, used so far by all ranks
//   config     the effective configuration, as JSON text
#pragma once

#include <cstdint>
#include <string>

#include "lib/train/fsdp_model.h"
#include "lib/train/fsdp_optimizer.h"

namespace fsdpctl::train {

struct TrainingState {
  FsdpModel& model;
  FSDPadaptOptimizer& optimizer;     // of that model
  uint64_t step = 0;
  uint64_t samples = 0;
  std::string config;                // a JSON object, the same on all ranks
};

}  // namespace fsdpctl::train
