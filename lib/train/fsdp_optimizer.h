// FSDPadaptOptimizer: mixed-precision training of sharded parameters, as LightRFT's class of that name means it.
//
// FP32 masters of the local shards, the optimizer's moments, the dynamic loss scale. A step takes the reduced, scaled gradients, agrees on
// their norm and on overflow with all ranks in one collective, and updates masters, moments and the parameters' 16-bit
// copies in one pass. Where parameters are FP32, they are the masters.
//
// Collective, on all ranks in the same order: the constructor, step(), load_state_dict(). A rank that fails in one of
// them makes all throw. Not thread-safe. Model, communicator and device must outlive the optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/communicator.h"
#include "lib/train/device.h"
#include "lib/train/grad_scaler.h"
#include "lib/train/lr_schedule.h"
#include "lib/train/optimizer_state.h"
#include "lib/train/param_groups.h"
#include "lib/train/parameter_shard.h"
#include "lib/train/state_dict.h"
#include "lib/train/step_summary.h"

namespace fsdpctl::train {

struct SavedParameter;

// Per-parameter shards (FSDP2's DTensors) are supported beside flat ones; a shard's placement selects how its norm is read.
inline constexpr bool DTENSOR_SUPPORTED = true;

struct FSDPadaptOptions {
  OptimizerOptions optimizer;
  std::optional<GradScalerOptions> scaler;   // default_scaler() of the parameters' dtype
  double max_norm = 1;                       // of all gradients together; 0: no clipping
  LrScheduleOptions schedule;
};

struct LoadOptions {
  bool strict = true;               // false: parameters that the dict lacks keep their state, others in it are passed over
  bool other_scaler = false;        // take the loss scale although the scaler is configured differently now
  bool hyperparameters = true;      // take lr, decay, max_norm, ... from the dict; false: keep this run's
  std::vector<std::string> names;   // of the parameters in a dict that has none (LightRFT's), in the order of their ids
};

struct LoadReport {
  std::vector<std::string> missing, unexpected;   // names, where not strict
};

class FSDPadaptOptimizer {
 public:
  // Error(usage) for impossible options; Error(failed) when ranks are given different parameters or options.
  FSDPadaptOptimizer(ShardedModel& model, Communicator& ranks, Device& device, const FSDPadaptOptions& options);
  ~FSDPadaptOptimizer();

  // Scales the loss, in FP32. Error(usage), with the shape, unless it has one element.
  void backward(const at::Tensor& loss, bool retain_graph = false);

  // False when some rank's gradients are not all finite: nothing is changed but the loss scale. Gradients are cleared in
  // either case. Parameters to which no rank has a gradient are left alone.
  bool step();
  void zero_grad();

  // Sets the threshold for good; 0: no clipping. Error(usage) for another model than the optimizer's.
  void clip_grad_norm(const ShardedModel& model, double max_norm);

  // float32, [1], on the host: always the same tensor, which follows the scaler.
  const at::Tensor& loss_scale() const { return *loss_scale_; }

  // A snapshot: grad_scaler, base_optim_states, flat_fp32_weights as the source has them, and meta.
  StateDict state_dict() const;

  // From one dict, or from those of several ranks together, each of any world size: whatever holds this rank's elements.
  // Every rank checks, all agree, then all change. Masters are copied to the parameters.
  LoadReport load_state_dict(const StateDict& dict, const LoadOptions& options = {});
  LoadReport load_state_dict(std::span<const StateDict* const> dicts, const LoadOptions& options = {});

  // ---- what the source lacks
  double last_grad_norm() const { return last_grad_norm_; }   // of the last step, unscaled; infinity when it was skipped
  OptimizerKind kind() const { return kind_; }
  double max_norm() const { return max_norm_; }
  uint64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  const DynamicGradScaler& scaler() const { return scaler_; }
  const LrSchedule& schedule() const { return schedule_; }
  std::span<const ParamGroup> param_groups() const { return groups_; }

  // Asks, at the next step, for the end of the run; after a step, what any rank has asked for (the highest).
  void request_stop(uint8_t signal) { stop_ = signal; }
  uint8_t stop_agreed() const { return stop_agreed_; }

  // After weights were loaded into the model alone: masters become what the model holds.
  void refresh_masters_from_model();

  // Of the parameter with this id: group after group, in each in the model's order.
  size_t parameter_count() const { return parameters_.size(); }
  const ShardInfo& parameter(size_t id) const { return parameters_[id].shard->info(); }
  OptimizerState& state() { return state_; }
  Device& device() { return device_; }

 private:
  struct Parameter {
    ParameterShard* shard = nullptr;
    size_t group = 0;
    kernels::FloatType type = kernels::FloatType::float32;   // of local
    void* local = nullptr;
  };
  struct Gradients;    // of one step
  struct SavedState;   // what load_state_dict() found

  void adopt(size_t group, ParameterShard& shard);
  void check_ranks(const FSDPadaptOptions& options);
  StepSummary summarise(Gradients& gradients);
  void read_gradients(Gradients& gradients, StepSummary& summary);
  void update(Gradients& gradients, const std::vector<bool>& has_gradient, float factor);
  void update_adam(const Gradients& gradients, std::span<const size_t> ids, float factor);
  void update_sgd(const Gradients& gradients, std::span<const size_t> ids, float factor);
  void plan_load(std::span<const StateDict* const> dicts, const LoadOptions& options, SavedState& state);
  void plan_parameter(size_t id, const std::vector<const SavedParameter*>& pieces, SavedState& state);
  void plan_options(const LoadOptions& options, SavedState& state);
  void check_same_step(const std::vector<std::string>& summaries) const;
  void commit_load(SavedState& state);
  void copy_masters_to_model(std::span<const size_t> ids);
  void set_loss_scale();
  Value groups_value() const;
  Value meta_value() const;

  ShardedModel& model_;
  Communicator& ranks_;
  Device& device_;
  const OptimizerKind kind_;
  std::vector<ParamGroup> groups_;
  std::vector<Parameter> parameters_;
  OptimizerState state_;
  DynamicGradScaler scaler_;
  LrSchedule schedule_;
  double max_norm_ = 1;
  std::unique_ptr<at::Tensor> loss_scale_;
  double last_grad_norm_ = 0;
  uint64_t skipped_in_a_row_ = 0;
  uint8_t stop_ = 0, stop_agreed_ = 0;
};

// Moves the optimizer's moments, where it has any, and on request its masters to pinned memory. Begins and returns.
struct OffloadOptions {
  bool masters = false;
};
StateMove offload_fsdp_optimizer(FSDPadaptOptimizer& optimizer, const OffloadOptions& options = {});

// Moves back what is not on the device. `device`: empty is the optimizer's own. Error(unsupported) when there is no such
// device, Error(usage) when it is another than the optimizer's.
StateMove load_fsdp_optimizer(FSDPadaptOptimizer& optimizer, std::string_view device = {});

}  // namespace fsdpctl::train
