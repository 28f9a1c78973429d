#include "lib/train/saved_state.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "lib/ckpt/training_state.h"

namespace fsdpctl::train {
namespace {

const Value* at_path(const Value& root, std::string_view path) {
  const Value* value = &root;
  while (!path.empty() && value != nullptr) {
    const std::string_view name = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    value = value->is_mapping() ? value->find(name) : nullptr;
  }
  return value;
}

std::optional<int64_t> integer_at(const Value& mapping, std::string_view key) {
  const Value* value = mapping.find(key);
  if (value == nullptr || !value->is(Kind::integer)) return std::nullopt;
  if (value->as_integer() < 0) {
    throw Error(Exit::damaged, "impossible value in a checkpoint").key(std::string(key)).saw("0 or more", std::to_string(value->as_integer()));
  }
  return value->as_integer();
}

class Reader {
 public:
  Reader(const Checkpoint& checkpoint, OptimizerKind kind, const std::vector<std::string>& trainable)
      : checkpoint_(checkpoint), parts_(find_parts(checkpoint)), kind_(kind), trainable_(trainable) {}

  SavedState read(const GradScalerOptions& scaler) {
    for (const LeafInfo& leaf : parts_.leaves) {
      if (leaf.part == Part::model && leaf.tensor != kNoTensor) state_.model.emplace(leaf.fqn, leaf.tensor);
    }
    read_optimizer();
    read_others(scaler);
    return std::move(state_);
  }

 private:
  void read_optimizer() {
    if (parts_.optimizers.empty()) return;
    if (parts_.optimizers.size() > 1) {
      throw Error(Exit::refused, "checkpoint holds several optimizers").found_only(parts_.optimizers[0].path + ", " + parts_.optimizers[1].path);
    }
    const OptimizerInfo& optimizer = parts_.optimizers[0];
    if (optimizer.integer_ids && !optimizer.named) name_ids(optimizer);
    for (size_t g = 0; g < optimizer.groups.size(); ++g) read_group(optimizer, g);
    for (const LeafInfo& leaf : parts_.leaves) {
      if (leaf.optimizer != 0 || leaf.field.empty() || leaf.fqn.empty()) continue;
      state_.optimizer[name_of(leaf.fqn)].fields[std::string(leaf.field)] = {leaf.tensor, leaf.value};
    }
  }

  // Numbers count the parameters that the optimizer was given: the model's, where there is one group of all of them.
  void name_ids(const OptimizerInfo& optimizer) {
    if (optimizer.groups.size() != 1 || optimizer.groups[0].params.size() != trainable_.size()) {
      throw Error(Exit::refused, "optimizer state knows its parameters by number, and groups do not tell which they are")
          .key(optimizer.path)
          .saw(fmt::format("one group of {} parameters", trainable_.size()),
               fmt::format("{} groups, the first of {}", optimizer.groups.size(), optimizer.groups.empty() ? 0 : optimizer.groups[0].params.size()));
    }
    for (size_t i = 0; i < trainable_.size(); ++i) names_[std::string(optimizer.groups[0].params[i])] = trainable_[i];
    state_.assumed.push_back(fmt::format("{}: parameters are known by number, taken for the model's in their order", optimizer.path));
  }

  std::string name_of(std::string_view parameter) const {
    const auto name = names_.find(parameter);
    return name == names_.end() ? std::string(parameter) : name->second;
  }

  void read_group(const OptimizerInfo& optimizer, size_t g) {
    const OptimizerGroup& group = optimizer.groups[g];
    std::vector<Entry> entries;
    for (const auto& [field, value] : group.fields) entries.push_back({Value::string(field), *value});
    const std::string path = fmt::format("{}{}param_groups.{}", optimizer.path, optimizer.path.empty() ? "" : ".", g);
    const SavedGroup saved = read_saved_group(Value::mapping(Kind::dict, std::move(entries)), kind_, path);
    for (const std::string_view parameter : group.params) {
      SavedParameterState& state = state_.optimizer[name_of(parameter)];
      state.group = saved;
      state.group_path = path;
    }
  }

  void read_others(const GradScalerOptions& scaler) {
    const Value& tree = checkpoint_.tree;
    if (tree.is_mapping() && parts_.model != &tree) {
      state_.step = integer_at(tree, "step");
      state_.samples = integer_at(tree, "samples");
      const Value* config = tree.find("config");
      if (config != nullptr && config->is(Kind::string) && checkpoint_format_is_ours()) state_.config = config->text();
    }
    for (const StateEntry& entry : find_training_state(checkpoint_, parts_)) {
      const Value* value = at_path(tree, entry.path);
      if (value != nullptr && entry.kind == StateKind::scheduler && !state_.schedule_taken) {
        state_.schedule_taken = integer_at(*value, "last_epoch");
      } else if (value != nullptr && entry.kind == StateKind::scaler && !state_.scaler) {
        state_.scaler = read_scaler(*value, scaler, entry.path);
      } else if (entry.path != "step" && entry.path != "samples" && !(entry.path == "config" && state_.config)) {
        state_.others.push_back(entry.path);
      }
    }
  }

  // Beside a text `config` of ours there is always how far the run is.
  bool checkpoint_format_is_ours() const { return state_.step && state_.samples; }

  static SavedScaler read_scaler(const Value& value, const GradScalerOptions& ours, const std::string& path) {
    SavedScaler saved;
    saved.options = ours;
    GradScalerOptions& o = saved.options;
    const auto number = [&](const char* key, double& out) {
      if (value.find(key) != nullptr) out = require_number(value, key, path);
    };
    const auto counted = [&](const char* key, uint64_t& out) {
      if (const auto found = integer_at(value, key)) out = static_cast<uint64_t>(*found);
    };
    saved.scale = require_number(value, "scale", path);
    saved.growth_step = integer_at(value, "_growth_tracker").value_or(0);
    saved.hysteresis_step = integer_at(value, "_hysteresis_tracker").value_or(0);
    number("initial_scale", o.initial_scale);
    number("growth_factor", o.growth_factor);
    number("backoff_factor", o.backoff_factor);
    number("min_scale", o.min_scale);
    number("max_scale", o.max_scale);
    counted("growth_interval", o.growth_interval);
    counted("hysteresis", o.hysteresis);
    if (const Value* dtype = value.find("dtype"); dtype != nullptr && dtype->is(Kind::string)) {
      o.dtype = dtype_from_name(dtype->text()).value_or(o.dtype);
    }
    return saved;
  }

  const Checkpoint& checkpoint_;
  const Parts parts_;
  const OptimizerKind kind_;
  const std::vector<std::string>& trainable_;
  std::map<std::string, std::string, std::less<>> names_;   // of numbers
  SavedState state_;
};

}  // namespace

SavedState read_saved_state(const Checkpoint& checkpoint, OptimizerKind kind, const std::vector<std::string>& trainable,
                            const GradScalerOptions& scaler) {
  return Reader(checkpoint, kind, trainable).read(scaler);
}

}  // namespace fsdpctl::train
