#include "lib/train/saved_optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "kernels/kernels.h"
#include "lib/base/element.h"
#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

Error damaged(std::string path, std::string expected, std::string found) {
  return Error(Exit::damaged, "an optimizer state dict is malformed").key(std::move(path)).saw(std::move(expected), std::move(found));
}

// A mapping's values by their keys as text: 0 and "0" are the same id.
std::map<std::string, const Value*> by_key(const Value& mapping) {
  std::map<std::string, const Value*> found;
  for (const Entry& entry : mapping.entries()) found[key_text(entry.key)] = &entry.value;
  return found;
}

const StateTensor& tensor_at(const StateDict& dict, const Value& leaf, const std::string& path) {
  if (!leaf.is(Kind::tensor) || leaf.as_tensor().index >= dict.tensors.size()) throw damaged(path, "a tensor", "something else");
  const StateTensor& tensor = dict.tensors[leaf.as_tensor().index];
  if (dtype_kind(tensor.dtype) != DTypeKind::floating || item_size(tensor.dtype) > 4) {
    throw damaged(path, "float32, float16 or bfloat16", std::string(dtype_name(tensor.dtype)));
  }
  return tensor;
}

// A step as torch.optim keeps it: a tensor of one number, or (older) a number.
uint64_t step_at(const StateDict& dict, const Value& value, const std::string& path) {
  double step = -1;
  if (value.is(Kind::integer)) step = static_cast<double>(value.as_integer());
  if (value.is(Kind::real)) step = value.as_real();
  if (value.is(Kind::tensor)) {
    const StateTensor& tensor = tensor_at(dict, value, path);
    if (tensor.count() != 1 || tensor.dtype != DType::float32) throw damaged(path, "one float32", "another tensor");
    float number = 0;
    std::memcpy(&number, tensor.data.get(), sizeof(number));
    step = number;
  }
  if (!(step >= 0) || step != std::floor(step) || step > 0x1p53) throw damaged(path, "a count of steps", fmt::format("{}", step));
  return static_cast<uint64_t>(step);
}

std::vector<const char*> moment_names(OptimizerKind kind) {
  if (kind == OptimizerKind::sgd) return {"momentum_buffer"};
  return {"exp_avg", "exp_avg_sq"};
}

// `state`: what base_optim_states.state has for the parameter.
void read_state(SavedParameter& parameter, const StateDict& dict, const Value& state, OptimizerKind kind, const std::string& path) {
  if (!state.is_mapping()) throw damaged(path, "a mapping", "something else");
  const std::vector<const char*> names = moment_names(kind);
  std::map<std::string, const Value*> fields = by_key(state);
  for (const char* name : names) {
    const auto field = fields.find(name);
    if (field == fields.end() || field->second->is(Kind::none)) continue;
    const StateTensor& moment = tensor_at(dict, *field->second, path + "." + name);
    if (moment.shape != parameter.master->shape) {
      throw damaged(path + "." + name, fmt::format("{} elements, as the master", parameter.master->count()),
                    fmt::format("{}", moment.count()));
    }
    parameter.moments.push_back(&moment);
    fields.erase(field);
  }
  fields.erase("momentum_buffer");   // none
  if (const auto step = fields.find("step"); step != fields.end()) {
    parameter.step = step_at(dict, *step->second, path + ".step");
    fields.erase(step);
  } else {
    parameter.step = kind == OptimizerKind::sgd && !parameter.moments.empty() ? 1 : 0;
  }
  if (!fields.empty()) {
    throw Error(Exit::refused, "optimizer state has a field that this optimizer lacks")
        .key(path)
        .saw(fmt::format("those of {}", optimizer_class(kind)), fields.begin()->first);
  }
  const size_t expected = parameter.step == 0 ? 0 : names.size();
  if (parameter.moments.size() != expected) {
    throw damaged(path, fmt::format("{} moments at step {}", expected, parameter.step), fmt::format("{}", parameter.moments.size()));
  }
}

void refuse_option(const Value& group, const char* name, const std::string& path) {
  const Value* value = group.find(name);
  if (value == nullptr || value->is(Kind::none)) return;
  if (value->is(Kind::boolean) && !value->as_boolean()) return;
  if ((value->is(Kind::integer) || value->is(Kind::real)) && require_number(group, name, path) == 0) return;
  throw Error(Exit::refused, "an option of the saved optimizer is not supported").key(path + "." + name);
}

Error another_optimizer(std::string path, OptimizerKind kind, std::string_view found) {
  return Error(Exit::refused, "optimizer state of another optimizer")
      .key(std::move(path))
      .saw(std::string(optimizer_class(kind)), std::string(found));
}

void read_masters(SavedOptimizer& saved, const StateDict& dict, const Value& group, size_t g, const Value& masters) {
  const std::string path = fmt::format("flat_fp32_weights.{}", g);
  const Value& ids = require(group, "params", Kind::list, fmt::format("base_optim_states.param_groups.{}", g));
  if (!masters.is_sequence() || masters.items().size() != ids.items().size()) {
    throw damaged(path, fmt::format("{} tensors", ids.items().size()),
                  masters.is_sequence() ? fmt::format("{}", masters.items().size()) : "something else");
  }
  for (size_t i = 0; i < ids.items().size(); ++i) {
    const Value& id = ids.items()[i];
    if (!id.is(Kind::integer) || id.as_integer() != static_cast<int64_t>(saved.parameters.size())) {
      throw damaged(fmt::format("base_optim_states.param_groups.{}.params", g), fmt::format("{}", saved.parameters.size()),
                    id.is(Kind::integer) ? fmt::format("{}", id.as_integer()) : "something else");
    }
    SavedParameter parameter;
    parameter.group = g;
    parameter.master = &tensor_at(dict, masters.items()[i], fmt::format("{}.{}", path, i));
    saved.parameters.push_back(std::move(parameter));
  }
}

GradScalerOptions read_scaler_options(const Value& scaler) {
  const std::string path = "meta.scaler";
  GradScalerOptions o;
  const auto counted = [&](const char* name) {
    return static_cast<uint64_t>(require(scaler, name, Kind::integer, path).as_integer());
  };
  o.initial_scale = require_number(scaler, "initial_scale", path);
  o.growth_factor = require_number(scaler, "growth_factor", path);
  o.backoff_factor = require_number(scaler, "backoff_factor", path);
  o.growth_interval = counted("growth_interval");
  o.min_scale = require_number(scaler, "min_scale", path);
  o.max_scale = require_number(scaler, "max_scale", path);
  o.hysteresis = counted("hysteresis");
  const std::string_view dtype = require(scaler, "dtype", Kind::string, path).text();
  o.dtype = dtype_from_name(dtype).value_or(DType::boolean);
  if (o.dtype == DType::boolean) throw damaged(path + ".dtype", "a dtype", std::string(dtype));
  return o;
}

// The item that belongs to each parameter in {group: [...]}.
std::vector<const Value*> per_parameter(const SavedOptimizer& saved, const Value& meta, const char* key, Kind kind) {
  const Value& groups = require_mapping(meta, key, "meta");
  std::vector<const Value*> items;
  const auto lists = by_key(groups);
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    const auto found = lists.find(std::to_string(g));
    if (found == lists.end() || !found->second->is_sequence()) throw damaged(fmt::format("meta.{}.{}", key, g), "a list", "something else");
    for (const Value& item : found->second->items()) {
      if (!item.is(kind)) throw damaged(fmt::format("meta.{}.{}", key, g), "another kind of value", "something else");
      items.push_back(&item);
    }
  }
  if (items.size() != saved.parameters.size()) {
    throw damaged(fmt::format("meta.{}", key), fmt::format("{} items", saved.parameters.size()), fmt::format("{}", items.size()));
  }
  return items;
}

std::vector<int64_t> read_shape(const Value& value, const std::string& path) {
  std::vector<int64_t> shape;
  uint64_t count = 1;
  for (const Value& size : value.items()) {
    const int64_t n = size.is(Kind::integer) ? size.as_integer() : -1;
    if (n < 0 || (n > 0 && count > (uint64_t{1} << 62) / static_cast<uint64_t>(n))) throw damaged(path, "a shape", "something else");
    if (n > 0) count *= static_cast<uint64_t>(n);
    shape.push_back(n);
  }
  return shape;
}

uint64_t product(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t size : shape) count *= static_cast<uint64_t>(size);
  return count;
}

void read_meta(SavedOptimizer& saved, const Value& meta, OptimizerKind kind) {
  if (!meta.is_mapping()) throw damaged("meta", "a mapping", "something else");
  const int64_t version = require(meta, "version", Kind::integer, "meta").as_integer();
  if (version != 1) {
    throw Error(Exit::unsupported, "an optimizer state dict of another version").key("meta.version").saw("1", std::to_string(version));
  }
  const std::string_view optimizer = require(meta, "optimizer", Kind::string, "meta").text();
  if (optimizer != optimizer_class(kind)) throw another_optimizer("meta.optimizer", kind, optimizer);
  const auto names = per_parameter(saved, meta, "names", Kind::string);
  const auto shapes = per_parameter(saved, meta, "global_shapes", Kind::list);
  const auto offsets = per_parameter(saved, meta, "offsets", Kind::integer);
  for (size_t id = 0; id < saved.parameters.size(); ++id) {
    SavedParameter& p = saved.parameters[id];
    p.name = names[id]->text();
    p.global_shape = read_shape(*shapes[id], "meta.global_shapes of " + p.name);
    const int64_t begin = offsets[id]->as_integer();
    const uint64_t whole = product(p.global_shape);
    if (begin < 0 || static_cast<uint64_t>(begin) > whole || p.master->count() > whole - static_cast<uint64_t>(begin)) {
      throw damaged("meta.offsets of " + p.name, fmt::format("a range in {} elements", whole),
                    fmt::format("{} from {}", p.master->count(), begin));
    }
    p.begin = static_cast<uint64_t>(begin);
  }
  saved.has_meta = true;
  saved.scaler = read_scaler_options(require_mapping(meta, "scaler", "meta"));
  saved.max_norm = require_number(meta, "max_norm", "meta");
  const int64_t taken = require(require_mapping(meta, "lr_schedule", "meta"), "last_epoch", Kind::integer, "meta.lr_schedule").as_integer();
  if (taken < 0) throw damaged("meta.lr_schedule.last_epoch", "0 or more", std::to_string(taken));
  saved.steps_taken = static_cast<uint64_t>(taken);
}

void take_names(SavedOptimizer& saved, std::span<const std::string> names) {
  if (names.size() != saved.parameters.size()) {
    throw Error(Exit::refused, "an optimizer state dict does not name its parameters, and names were not given")
        .saw(fmt::format("{} names", saved.parameters.size()), fmt::format("{}", names.size()));
  }
  for (size_t id = 0; id < names.size(); ++id) saved.parameters[id].name = names[id];
}

}  // namespace

SavedGroup read_saved_group(const Value& group, OptimizerKind kind, const std::string& path) {
  const bool has_betas = group.find("betas") != nullptr;
  if (has_betas == (kind == OptimizerKind::sgd) && (has_betas || group.find("momentum") != nullptr)) {
    throw another_optimizer(path, kind, has_betas ? "Adam or AdamW" : "SGD");
  }
  for (const char* name : {"amsgrad", "maximize", "nesterov", "dampening"}) refuse_option(group, name, path);
  SavedGroup saved;
  GroupOptions& o = saved.options;
  o.lr = require_number(group, "lr", path);
  o.weight_decay = require_number(group, "weight_decay", path);
  saved.initial_lr = group.find("initial_lr") != nullptr ? require_number(group, "initial_lr", path) : o.lr;
  if (kind == OptimizerKind::sgd) {
    o.momentum = require_number(group, "momentum", path);
    return saved;
  }
  o.eps = require_number(group, "eps", path);
  const Value* betas = group.find("betas");
  const auto is_real = [](const Value& v) { return v.is(Kind::real); };
  if (betas == nullptr || !betas->is_sequence() || betas->items().size() != 2 || !is_real(betas->items()[0]) || !is_real(betas->items()[1])) {
    throw damaged(path + ".betas", "two numbers", "something else");
  }
  o.beta1 = betas->items()[0].as_real();
  o.beta2 = betas->items()[1].as_real();
  const Value* decoupled = group.find("decoupled_weight_decay");
  if (decoupled != nullptr && decoupled->is(Kind::boolean) && decoupled->as_boolean() != (kind == OptimizerKind::adamw)) {
    throw another_optimizer(path, kind, decoupled->as_boolean() ? "AdamW" : "Adam");
  }
  return saved;
}

SavedOptimizer read_saved_optimizer(const StateDict& dict, OptimizerKind kind, std::span<const std::string> names) {
  if (!dict.tree.is_mapping()) throw damaged("", "a mapping", "something else");
  SavedOptimizer saved;
  const Value& scaler = require_mapping(dict.tree, "grad_scaler", "");
  saved.scale = require_number(scaler, "_scale", "grad_scaler");
  saved.growth_step = require(scaler, "_growth_step", Kind::integer, "grad_scaler").as_integer();
  saved.hysteresis_step = require(scaler, "_hysteresis_step", Kind::integer, "grad_scaler").as_integer();

  const Value& base = require_mapping(dict.tree, "base_optim_states", "");
  const std::vector<Value>& groups = require(base, "param_groups", Kind::list, "base_optim_states").items();
  const auto masters = by_key(require_mapping(dict.tree, "flat_fp32_weights", ""));
  if (masters.size() != groups.size()) {
    throw damaged("flat_fp32_weights", fmt::format("{} groups", groups.size()), fmt::format("{}", masters.size()));
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string path = fmt::format("base_optim_states.param_groups.{}", g);
    if (!groups[g].is_mapping()) throw damaged(path, "a mapping", "something else");
    const auto found = masters.find(std::to_string(g));
    if (found == masters.end()) throw damaged(fmt::format("flat_fp32_weights.{}", g), "a list", "nothing");
    saved.groups.push_back(read_saved_group(groups[g], kind, path));
    read_masters(saved, dict, groups[g], g, *found->second);
  }
  auto states = by_key(require_mapping(base, "state", "base_optim_states"));
  for (size_t id = 0; id < saved.parameters.size(); ++id) {
    const auto state = states.find(std::to_string(id));
    if (state == states.end()) continue;
    read_state(saved.parameters[id], dict, *state->second, kind, fmt::format("base_optim_states.state.{}", id));
    states.erase(state);
  }
  if (!states.empty()) {
    throw damaged("base_optim_states.state", fmt::format("ids below {}", saved.parameters.size()), states.begin()->first);
  }
  if (const Value* meta = dict.tree.find("meta"); meta != nullptr) read_meta(saved, *meta, kind);
  else take_names(saved, names);

  std::set<std::string_view> seen;
  for (const SavedParameter& p : saved.parameters) {
    if (!seen.insert(p.name).second) throw damaged("meta.names", "each name once", p.name);
  }
  return saved;
}

}  // namespace fsdpctl::train
