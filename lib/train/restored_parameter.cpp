#include "lib/train/restored_parameter.h"

#include "lib/train/optimizer_values.h"

namespace fsdpctl::train {
namespace {

Value state_value(const Restored& p, OptimizerKind kind, StateDict& dict) {
  std::vector<Entry> fields;
  const bool sgd = kind == OptimizerKind::sgd;
  if (!sgd) fields.push_back({Value::string("step"), count_value(p.step)});
  for (size_t m = 0; m < p.moment_values.size(); ++m) {
    fields.push_back({Value::string(sgd ? "momentum_buffer" : m == 0 ? "exp_avg" : "exp_avg_sq"), dict.add(p.moment_values[m])});
  }
  return Value::mapping(Kind::dict, std::move(fields));
}

}  // namespace

StateDict restored_state_dict(const FSDPadaptOptimizer& optimizer, std::span<const Restored> parameters, const SavedState& saved) {
  std::vector<const Restored*> by_id(optimizer.parameter_count());
  for (const Restored& p : parameters) {
    if (p.id) by_id[*p.id] = &p;
  }
  StateDict dict;
  std::vector<Entry> states, masters, names, shapes, offsets;
  std::vector<Value> groups;
  size_t id = 0;
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const ParamGroup& group = optimizer.param_groups()[g];
    std::vector<Value> ids, group_masters, group_names, group_shapes, group_offsets;
    for (size_t i = 0; i < group.parameters.size(); ++i, ++id) {
      const Restored& p = *by_id[id];
      const ShardInfo& info = p.shard->info();
      std::vector<Value> shape;
      for (const int64_t size : info.shape) shape.push_back(Value::integer(size));
      ids.push_back(count_value(id));
      group_masters.push_back(dict.add(p.master));
      group_names.push_back(Value::string(info.fqn));
      group_shapes.push_back(list_value(std::move(shape)));
      group_offsets.push_back(count_value(info.begin));
      if (!p.moment_values.empty()) states.push_back({count_value(id), state_value(p, optimizer.kind(), dict)});
    }
    groups.push_back(group_value(optimizer.kind(), group, std::move(ids)));
    masters.push_back({count_value(g), list_value(std::move(group_masters))});
    names.push_back({count_value(g), list_value(std::move(group_names))});
    shapes.push_back({count_value(g), list_value(std::move(group_shapes))});
    offsets.push_back({count_value(g), list_value(std::move(group_offsets))});
  }
  const auto mapping = [](std::vector<Entry>& entries) { return Value::mapping(Kind::dict, std::move(entries)); };
  const DynamicGradScaler fresh(optimizer.scaler().options());
  const SavedScaler scaler = saved.scaler.value_or(SavedScaler{fresh.scale(), 0, 0, fresh.options()});
  const Value meta = dict_value({{"version", Value::integer(1)},
                                 {"optimizer", Value::string(optimizer_class(optimizer.kind()))},
                                 {"names", mapping(names)},
                                 {"global_shapes", mapping(shapes)},
                                 {"offsets", mapping(offsets)},
                                 {"scaler", scaler_value(scaler.options)},
                                 {"max_norm", Value::real(optimizer.max_norm())},
                                 {"lr_schedule", dict_value({{"last_epoch", Value::integer(saved.schedule_taken.value_or(0))}})}});
  dict.tree = dict_value({{"grad_scaler", dict_value({{"_scale", Value::real(scaler.scale)},
                                                      {"_growth_step", Value::integer(scaler.growth_step)},
                                                      {"_hysteresis_step", Value::integer(scaler.hysteresis_step)}})},
                          {"base_optim_states", dict_value({{"state", mapping(states)}, {"param_groups", list_value(std::move(groups))}})},
                          {"flat_fp32_weights", mapping(masters)},
                          {"meta", meta}});
  return dict;
}

}  // namespace fsdpctl::train
