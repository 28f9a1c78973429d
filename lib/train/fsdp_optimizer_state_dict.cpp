// FSDPadaptOptimizer::state_dict(). Keys and their order are the source's, groups and states torch.optim's:
//
//   grad_scaler         _scale, _growth_step, _hysteresis_step
//   base_optim_states   state: {id: {step, exp_avg, exp_avg_sq} or {momentum_buffer}}; param_groups
//   flat_fp32_weights   {group: [master, ...]}
//   meta                version, optimizer, world_size, rank; names, global_shapes and offsets as {group: [...]}; scaler,
//                       max_norm, lr_schedule
//
// Tensors are local shards: rows of the parameter where placement is per parameter, else flat.
#include <initializer_list>

#include "lib/train/fsdp_optimizer.h"

namespace fsdpctl::train {
namespace {

Value dict(std::initializer_list<std::pair<const char*, Value>> entries) {
  std::vector<Entry> made;
  for (const auto& [key, value] : entries) made.push_back({Value::string(key), value});
  return Value::mapping(Kind::dict, std::move(made));
}

Value integer(uint64_t value) { return Value::integer(static_cast<int64_t>(value)); }

Value list(std::vector<Value> items) { return Value::sequence(Kind::list, std::move(items)); }

void append(std::vector<Entry>& entries, const char* key, Value value) { entries.push_back({Value::string(key), std::move(value)}); }

Value group_value(OptimizerKind kind, const ParamGroup& group, size_t first_id) {
  const GroupOptions& o = group.options;
  std::vector<Entry> entries;
  append(entries, "lr", Value::real(o.lr));
  if (kind == OptimizerKind::sgd) {
    append(entries, "momentum", Value::real(o.momentum));
    append(entries, "dampening", Value::integer(0));
    append(entries, "weight_decay", Value::real(o.weight_decay));
    append(entries, "nesterov", Value::boolean(false));
  } else {
    append(entries, "betas", Value::sequence(Kind::tuple, {Value::real(o.beta1), Value::real(o.beta2)}));
    append(entries, "eps", Value::real(o.eps));
    append(entries, "weight_decay", Value::real(o.weight_decay));
    append(entries, "amsgrad", Value::boolean(false));
  }
  append(entries, "maximize", Value::boolean(false));
  append(entries, "foreach", Value());
  if (kind != OptimizerKind::sgd) append(entries, "capturable", Value::boolean(false));
  append(entries, "differentiable", Value::boolean(false));
  append(entries, "fused", Value());
  if (kind != OptimizerKind::sgd) append(entries, "decoupled_weight_decay", Value::boolean(kind == OptimizerKind::adamw));
  append(entries, "initial_lr", Value::real(group.initial_lr));
  std::vector<Value> ids;
  for (size_t i = 0; i < group.parameters.size(); ++i) ids.push_back(integer(first_id + i));
  append(entries, "params", list(std::move(ids)));
  return Value::mapping(Kind::dict, std::move(entries));
}

Value scaler_value(const GradScalerOptions& o) {
  return dict({{"initial_scale", Value::real(o.initial_scale)},
               {"growth_factor", Value::real(o.growth_factor)},
               {"backoff_factor", Value::real(o.backoff_factor)},
               {"growth_interval", integer(o.growth_interval)},
               {"min_scale", Value::real(o.min_scale)},
               {"max_scale", Value::real(o.max_scale)},
               {"hysteresis", integer(o.hysteresis)},
               {"dtype", Value::string(dtype_name(o.dtype))}});
}

Value schedule_value(const LrSchedule& schedule, std::span<const ParamGroup> groups) {
  std::vector<Value> base, last;
  for (const ParamGroup& group : groups) {
    base.push_back(Value::real(group.initial_lr));
    last.push_back(Value::real(group.options.lr));
  }
  const LrScheduleOptions& o = schedule.options();
  return dict({{"kind", Value::string(schedule_name(o.kind))},
               {"warmup_steps", integer(o.warmup_steps)},
               {"total_steps", integer(o.total_steps)},
               {"min_lr", Value::real(o.min_lr)},
               {"last_epoch", integer(schedule.taken())},
               {"base_lrs", list(std::move(base))},
               {"_last_lr", list(std::move(last))}});
}

// {0: [value of the first parameter of group 0, ...], 1: ...}.
template <class ValueOf>
Value by_group(std::span<const ParamGroup> groups, ValueOf value_of) {
  std::vector<Entry> entries;
  size_t id = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<Value> items;
    for (size_t i = 0; i < groups[g].parameters.size(); ++i) items.push_back(value_of(id++));
    entries.push_back({integer(g), list(std::move(items))});
  }
  return Value::mapping(Kind::dict, std::move(entries));
}

Value shape_value(const std::vector<int64_t>& shape) {
  std::vector<Value> sizes;
  for (const int64_t size : shape) sizes.push_back(Value::integer(size));
  return list(std::move(sizes));
}

}  // namespace

Value FSDPadaptOptimizer::groups_value() const {
  std::vector<Value> groups;
  size_t id = 0;
  for (const ParamGroup& group : groups_) {
    groups.push_back(group_value(kind_, group, id));
    id += group.parameters.size();
  }
  return list(std::move(groups));
}

Value FSDPadaptOptimizer::meta_value() const {
  return dict({
      {"version", Value::integer(1)},
      {"optimizer", Value::string(optimizer_class(kind_))},
      {"world_size", Value::integer(ranks_.size())},
      {"rank", Value::integer(ranks_.rank())},
      {"names", by_group(groups_, [&](size_t id) { return Value::string(parameter(id).fqn); })},
      {"global_shapes", by_group(groups_, [&](size_t id) { return shape_value(parameter(id).shape); })},
      {"offsets", by_group(groups_, [&](size_t id) { return integer(parameter(id).begin); })},
      {"scaler", scaler_value(scaler_.options())},
      {"max_norm", Value::real(max_norm_)},
      {"lr_schedule", schedule_value(schedule_, groups_)},
  });
}

StateDict FSDPadaptOptimizer::state_dict() const {
  std::vector<OptimizerState::Part> parts;
  for (size_t id = 0; id < parameters_.size(); ++id) {
    parts.push_back({id});
    for (int m = 0; m < state_.moments(id) && state_.step(id) > 0; ++m) parts.push_back({id, m});
  }
  std::vector<Block> blocks = state_.snapshot(parts);

  StateDict result;
  std::vector<Value> masters(parameters_.size());
  std::vector<std::vector<Entry>> states(parameters_.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [id, moment] = parts[i];
    const auto block = std::make_shared<Block>(std::move(blocks[i]));
    const Value leaf = result.add({DType::float32, local_shape(parameter(id)), std::shared_ptr<const void>(block, block->data())});
    if (moment < 0) masters[id] = leaf;
    else if (kind_ == OptimizerKind::sgd) append(states[id], "momentum_buffer", leaf);
    else append(states[id], moment == 0 ? "exp_avg" : "exp_avg_sq", leaf);
  }
  std::vector<Entry> state;
  for (size_t id = 0; id < parameters_.size(); ++id) {
    if (states[id].empty()) continue;
    if (kind_ != OptimizerKind::sgd) {
      const std::vector<float> step{static_cast<float>(state_.step(id))};
      states[id].insert(states[id].begin(), {Value::string("step"), result.add(make_state_tensor(DType::float32, {}, step))});
    }
    state.push_back({integer(id), Value::mapping(Kind::dict, std::move(states[id]))});
  }
  const Value scaler = dict({{"_scale", Value::real(scaler_.scale())},
                             {"_growth_step", integer(scaler_.growth_step())},
                             {"_hysteresis_step", integer(scaler_.hysteresis_step())}});
  const Value base = dict({{"state", Value::mapping(Kind::dict, std::move(state))}, {"param_groups", groups_value()}});
  result.tree = dict({{"grad_scaler", scaler},
                      {"base_optim_states", base},
                      {"flat_fp32_weights", by_group(groups_, [&](size_t id) { return masters[id]; })},
                      {"meta", meta_value()}});
  return result;
}

}  // namespace fsdpctl::train
