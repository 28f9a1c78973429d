#include "lib/train/optimizer_values.h"

namespace fsdpctl::train {
namespace {

void append(std::vector<Entry>& entries, const char* key, Value value) { entries.push_back({Value::string(key), std::move(value)}); }

}  // namespace

Value dict_value(std::initializer_list<std::pair<const char*, Value>> entries) {
  std::vector<Entry> made;
  for (const auto& [key, value] : entries) made.push_back({Value::string(key), value});
  return Value::mapping(Kind::dict, std::move(made));
}

Value count_value(uint64_t value) { return Value::integer(static_cast<int64_t>(value)); }

Value list_value(std::vector<Value> items) { return Value::sequence(Kind::list, std::move(items)); }

Value group_value(OptimizerKind kind, const ParamGroup& group, std::vector<Value> params) {
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
  append(entries, "params", list_value(std::move(params)));
  return Value::mapping(Kind::dict, std::move(entries));
}

Value scaler_value(const GradScalerOptions& o) {
  return dict_value({{"initial_scale", Value::real(o.initial_scale)},
                     {"growth_factor", Value::real(o.growth_factor)},
                     {"backoff_factor", Value::real(o.backoff_factor)},
                     {"growth_interval", count_value(o.growth_interval)},
                     {"min_scale", Value::real(o.min_scale)},
                     {"max_scale", Value::real(o.max_scale)},
                     {"hysteresis", count_value(o.hysteresis)},
                     {"dtype", Value::string(dtype_name(o.dtype))}});
}

Value schedule_value(const LrSchedule& schedule, std::span<const ParamGroup> groups) {
  std::vector<Value> base, last;
  for (const ParamGroup& group : groups) {
    base.push_back(Value::real(group.initial_lr));
    last.push_back(Value::real(group.options.lr));
  }
  const LrScheduleOptions& o = schedule.options();
  return dict_value({{"kind", Value::string(schedule_name(o.kind))},
                     {"warmup_steps", count_value(o.warmup_steps)},
                     {"total_steps", count_value(o.total_steps)},
                     {"min_lr", Value::real(o.min_lr)},
                     {"last_epoch", count_value(schedule.taken())},
                     {"base_lrs", list_value(std::move(base))},
                     {"_last_lr", list_value(std::move(last))}});
}

}  // namespace fsdpctl::train
