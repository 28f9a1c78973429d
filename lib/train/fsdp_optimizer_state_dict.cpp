// FSDPadaptOptimizer::state_dict(). Keys and their order are the source's, groups and states torch.optim's:
//
//   grad_scaler         _scale, _growth_step, _hysteresis_step
//   base_optim_states   state: {id: {step, exp_avg, exp_avg_sq} or {momentum_buffer}}; param_groups
//   flat_fp32_weights   {group: [master, ...]}
//   meta                version, optimizer, world_size, rank; names, global_shapes and offsets as {group: [...]}; scaler,
//                       max_norm, lr_schedule
//
// Tensors are local shards: rows of the parameter where placement is per parameter, else flat.
#include "lib/train/fsdp_optimizer.h"
#include "lib/train/optimizer_values.h"

namespace fsdpctl::train {
namespace {

void append(std::vector<Entry>& entries, const char* key, Value value) { entries.push_back({Value::string(key), std::move(value)}); }

// {0: [value of the first parameter of group 0, ...], 1: ...}.
template <class ValueOf>
Value by_group(std::span<const ParamGroup> groups, ValueOf value_of) {
  std::vector<Entry> entries;
  size_t id = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<Value> items;
    for (size_t i = 0; i < groups[g].parameters.size(); ++i) items.push_back(value_of(id++));
    entries.push_back({count_value(g), list_value(std::move(items))});
  }
  return Value::mapping(Kind::dict, std::move(entries));
}

Value shape_value(const std::vector<int64_t>& shape) {
  std::vector<Value> sizes;
  for (const int64_t size : shape) sizes.push_back(Value::integer(size));
  return list_value(std::move(sizes));
}

}  // namespace

Value FSDPadaptOptimizer::groups_value() const {
  std::vector<Value> groups;
  size_t id = 0;
  for (const ParamGroup& group : groups_) {
    std::vector<Value> ids;
    for (size_t i = 0; i < group.parameters.size(); ++i) ids.push_back(count_value(id++));
    groups.push_back(group_value(kind_, group, std::move(ids)));
  }
  return list_value(std::move(groups));
}

Value FSDPadaptOptimizer::meta_value() const {
  return dict_value({
      {"version", Value::integer(1)},
      {"optimizer", Value::string(optimizer_class(kind_))},
      {"world_size", Value::integer(ranks_.size())},
      {"rank", Value::integer(ranks_.rank())},
      {"names", by_group(groups_, [&](size_t id) { return Value::string(parameter(id).fqn); })},
      {"global_shapes", by_group(groups_, [&](size_t id) { return shape_value(parameter(id).shape); })},
      {"offsets", by_group(groups_, [&](size_t id) { return count_value(parameter(id).begin); })},
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
    state.push_back({count_value(id), Value::mapping(Kind::dict, std::move(states[id]))});
  }
  const Value scaler = dict_value({{"_scale", Value::real(scaler_.scale())},
                             {"_growth_step", count_value(scaler_.growth_step())},
                             {"_hysteresis_step", count_value(scaler_.hysteresis_step())}});
  const Value base = dict_value({{"state", Value::mapping(Kind::dict, std::move(state))}, {"param_groups", groups_value()}});
  result.tree = dict_value({{"grad_scaler", scaler},
                      {"base_optim_states", base},
                      {"flat_fp32_weights", by_group(groups_, [&](size_t id) { return masters[id]; })},
                      {"meta", meta_value()}});
  return result;
}

}  // namespace fsdpctl::train
