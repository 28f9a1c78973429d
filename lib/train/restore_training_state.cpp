// Every rank reads what it needs without changing anything, ranks agree, then all change.
#include "lib/train/restore_training_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lib/base/cast.h"
#include "lib/base/element.h"
#include "lib/ckpt/gather.h"
#include "lib/ckpt/resolve.h"
#include "lib/ckpt/tensor_totals.h"
#include "lib/ckpt/tiling.h"
#include "lib/train/checkpoint_weights.h"
#include "lib/train/config_changes.h"
#include "lib/train/restored_parameter.h"
#include "lib/train/torch_types.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kReadMemory = 8 << 20;
constexpr size_t kListed = 20;   // names in a message

std::string listed(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kListed);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? text + fmt::format(" and {} more", names.size() - shown) : text;
}

class Restore {
 public:
  Restore(Checkpoint& checkpoint, TrainingState& state, Communicator& world, const RestoreOptions& options)
      : checkpoint_(checkpoint), state_(state), world_(world), options_(options) {}

  RestoreReport run() {
    std::optional<Finding> failure;
    StateDict dict;
    try {
      plan();
      read();
      dict = restored_state_dict(state_.optimizer, parameters_, saved_);
    } catch (const Error& e) {
      failure = e.finding();
    } catch (const std::exception& e) {
      failure = error(Exit::failed, "checkpoint cannot be read").found_only(e.what());
    }
    world_.agree(failure, "reading the checkpoint");
    LoadOptions loading;
    loading.other_scaler = options_.other_scaler;
    loading.hyperparameters = false;
    state_.optimizer.load_state_dict(dict, loading);
    set_frozen();
    state_.step = report_.step;
    state_.samples = report_.samples;
    return std::move(report_);
  }

 private:
  // ---- what the checkpoint has, without reading any element

  void plan() {
    report_.format = checkpoint_.format;
    FindingSink strict;
    check_tiling(checkpoint_, strict);
    std::vector<std::string> trainable;
    for (const ParameterShard* shard : state_.model.shards()) {
      if (shard->info().requires_grad) trainable.push_back(shard->info().fqn);
    }
    saved_ = read_saved_state(checkpoint_, state_.optimizer.kind(), trainable, state_.optimizer.scaler().options());
    compare_configs();
    weights_ = checkpoint_weights(checkpoint_, state_.model.root());   // refuses another model, by names and shapes
    plan_parameters();
    plan_position();
    report_.not_used = saved_.others;
    report_.assumed.insert(report_.assumed.begin(), saved_.assumed.begin(), saved_.assumed.end());
    std::set<const SavedParameterState*> used;
    for (const Restored& p : parameters_) {
      if (p.id) used.insert(p.state);
    }
    for (const auto& [fqn, state] : saved_.optimizer) {
      if (!used.contains(&state)) report_.not_used.push_back("optimizer.state." + fqn);
    }
    if (!report_.widened.empty() && !options_.masters_from_model) {
      throw Error(Exit::refused, "checkpoint has no FP32 weights")
          .found_only(listed(report_.widened))
          .try_("--masters-from-model, which takes the weights that there are for masters");
    }
    if (!report_.started_anew.empty() && !options_.allow_partial) {
      throw Error(Exit::refused, "checkpoint lacks state of the run")
          .found_only(listed(report_.started_anew))
          .try_("--allow-partial, which starts these anew");
    }
  }

  void compare_configs() {
    if (!saved_.config) return;
    std::vector<std::string> refused;
    for (ConfigChange& change : config_changes(*saved_.config, state_.config, options_.free_config)) {
      if (is_at_or_below(change.key, options_.fixed_config)) {
        refused.push_back(fmt::format("{}: {}, not {}", change.key, change.now.empty() ? "nothing" : change.now,
                                      change.saved.empty() ? "nothing" : change.saved));
      }
      report_.config_changes.push_back(std::move(change));
    }
    if (refused.empty()) return;
    throw Error(Exit::refused, "configuration is not the one of the checkpoint").found_only(fmt::format("{}", fmt::join(refused, "; ")));
  }

  void plan_parameters() {
    FSDPadaptOptimizer& optimizer = state_.optimizer;
    std::map<std::string_view, size_t> ids;
    for (size_t id = 0; id < optimizer.parameter_count(); ++id) ids.emplace(optimizer.parameter(id).fqn, id);
    const std::vector<NamedParameter> named = named_parameters(state_.model.root());
    for (size_t i = 0; i < named.size(); ++i) {
      Restored p;
      p.shard = state_.model.shards()[i];
      std::vector<std::string> names = named[i].aliases;
      names.insert(names.begin(), named[i].fqn);
      if (const auto id = ids.find(named[i].fqn); id != ids.end()) p.id = id->second;
      for (const std::string& name : names) {
        const auto weights = saved_.model.find(name);
        if (weights != saved_.model.end()) {
          if (p.weights == kNoTensor) p.weights = weights->second;
          else p.ties.push_back(weights->second);
        }
        const auto state = saved_.optimizer.find(name);
        if (state != saved_.optimizer.end() && p.state == nullptr) p.state = &state->second;
      }
      if (p.id) plan_state(p);
      parameters_.push_back(std::move(p));
    }
    if (!saved_.config) compare_groups();
  }

  void plan_state(Restored& p) {
    const std::string& fqn = p.shard->info().fqn;
    if (checkpoint_.tensors[p.weights].dtype != DType::float32) report_.widened.push_back(fqn);
    if (p.state == nullptr || !p.state->group) {
      report_.started_anew.push_back("optimizer.state." + fqn);
      return;
    }
    report_.optimizer = true;
    const bool sgd = state_.optimizer.kind() == OptimizerKind::sgd;
    std::vector<const char*> wanted = sgd ? std::vector<const char*>{"momentum_buffer"} : std::vector<const char*>{"exp_avg", "exp_avg_sq"};
    wanted.resize(std::min(wanted.size(), static_cast<size_t>(state_.optimizer.state().moments(*p.id))));
    std::set<std::string_view> known = {"step"};
    if (sgd && wanted.empty() && p.state->fields.contains("momentum_buffer")) {
      known.insert("momentum_buffer");
      report_.not_used.push_back("optimizer.state." + fqn + ".momentum_buffer");
    }
    for (const char* name : wanted) {
      known.insert(name);
      const auto field = p.state->fields.find(name);
      if (field == p.state->fields.end() || field->second.tensor == kNoTensor) continue;
      check_moment(p, name, field->second.tensor);
      p.moments.push_back(field->second.tensor);
    }
    for (const auto& [name, field] : p.state->fields) {
      if (!known.contains(name)) {
        throw Error(Exit::refused, "optimizer state has a field that this optimizer lacks").key(fqn + "." + name);
      }
    }
    if (p.moments.empty()) return;   // it never had a gradient
    if (p.moments.size() != wanted.size() || (!sgd && !p.state->fields.contains("step"))) {
      throw Error(Exit::damaged, "optimizer state lacks a field").key(fqn).saw(fmt::format("{}{}", sgd ? "" : "step, ", fmt::join(wanted, ", ")), "fewer");
    }
  }

  void check_moment(const Restored& p, const char* name, TensorIndex t) const {
    const std::string& fqn = p.shard->info().fqn;
    const TensorInfo &info = checkpoint_.tensors[t], &weights = checkpoint_.tensors[p.weights];
    if (!equal(info.shape, weights.shape)) {
      throw Error(Exit::refused, "optimizer state has another shape than its parameter")
          .key(fqn + "." + name)
          .saw(dims_text(weights.shape), dims_text(info.shape));
    }
    if (info.dtype != DType::float32 && info.dtype != DType::bfloat16 && info.dtype != DType::float16) {
      throw Error(Exit::refused, "optimizer state of a dtype that cannot be loaded").key(fqn + "." + name).found_only(std::string(dtype_name(info.dtype)));
    }
  }

  // Where there is no configuration to compare: hyperparameters, group by group.
  void compare_groups() {
    std::set<std::string> seen;
    for (const Restored& p : parameters_) {
      if (!p.id || p.state == nullptr || !p.state->group) continue;
      const SavedGroup& saved = *p.state->group;
      const ParamGroup& now = group_of(*p.id);
      const auto compare = [&](const char* key, double then, double here) {
        if (then == here) return;
        ConfigChange change{fmt::format("{}.{}", p.state->group_path, key), fmt::format("{}", then), fmt::format("{}", here)};
        if (seen.insert(change.key + change.now).second) report_.config_changes.push_back(std::move(change));
      };
      compare("lr", saved.initial_lr, now.initial_lr);
      compare("weight_decay", saved.options.weight_decay, now.options.weight_decay);
      if (state_.optimizer.kind() == OptimizerKind::sgd) {
        compare("momentum", saved.options.momentum, now.options.momentum);
        continue;
      }
      compare("betas.0", saved.options.beta1, now.options.beta1);
      compare("betas.1", saved.options.beta2, now.options.beta2);
      compare("eps", saved.options.eps, now.options.eps);
    }
  }

  const ParamGroup& group_of(size_t id) const {
    for (const ParamGroup& group : state_.optimizer.param_groups()) {
      if (id < group.parameters.size()) return group;
      id -= group.parameters.size();
    }
    throw Error(Exit::failed, "parameter is in no group");
  }

  // Schedule, scaler, step and data.
  void plan_position() {
    const LrScheduleOptions& schedule = state_.optimizer.schedule().options();
    const bool has_schedule = schedule.kind != LrScheduleOptions::Kind::constant || schedule.warmup_steps > 0;
    const GradScalerOptions& scaler = state_.optimizer.scaler().options();
    const bool has_scaler = scaler.growth_factor != 1 || scaler.backoff_factor != 1;
    if (!saved_.schedule_taken && has_schedule) report_.started_anew.push_back("scheduler");
    if (!saved_.scaler && has_scaler) report_.started_anew.push_back("scaler");
    if (!saved_.step) report_.started_anew.push_back("step");
    if (!saved_.samples) report_.started_anew.push_back("samples");
    report_.step = static_cast<uint64_t>(saved_.step.value_or(0));
    report_.samples = static_cast<uint64_t>(saved_.samples.value_or(0));
  }

  // ---- the elements that this rank holds

  void read() {
    resolve();
    gatherer_.emplace(checkpoint_, kReadMemory, nullptr);
    const std::vector<NamedParameter> named = named_parameters(state_.model.root());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      Restored& p = parameters_[i];
      const ShardInfo& info = p.shard->info();
      auto values = std::make_shared<std::vector<float>>(info.count());
      if (!values->empty()) weights_(named[i], info.begin, *values);
      p.master = {DType::float32, local_shape(info), std::shared_ptr<const void>(values, values->data())};
      if (p.moments.empty()) continue;
      for (const TensorIndex t : p.moments) p.moment_values.push_back(read_part(t, info));
      p.step = state_.optimizer.kind() == OptimizerKind::sgd ? 1 : read_step(p);
      if (p.step == 0) p.moment_values.clear();   // as good as none
    }
  }

  // Of the pieces, those that this rank's elements are in.
  void resolve() {
    std::vector<Piece*> pieces;
    const auto add = [&](TensorIndex t, uint64_t begin, uint64_t end) {
      Arena arena;
      const TensorInfo& info = checkpoint_.tensors[t];
      const std::vector<Box> boxes = flat_range_boxes(arena, info.shape, begin, end);
      for (PieceIndex p = info.first_piece; p < info.first_piece + info.piece_count; ++p) {
        Piece& piece = checkpoint_.pieces[p];
        const auto meets = [&](const Box& box) { return overlap(box, piece.box); };
        if (info.shape.empty() || std::any_of(boxes.begin(), boxes.end(), meets)) pieces.push_back(&piece);
      }
    };
    for (const Restored& p : parameters_) {
      const ShardInfo& info = p.shard->info();
      add(p.weights, info.begin, info.end);
      for (const TensorIndex t : p.ties) add(t, info.begin, info.end);
      for (const TensorIndex t : p.moments) add(t, info.begin, info.end);
      if (p.moments.empty()) continue;
      const auto step = p.state->fields.find("step");
      if (step != p.state->fields.end() && step->second.tensor != kNoTensor) add(step->second.tensor, 0, 1);
    }
    std::sort(pieces.begin(), pieces.end());
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    FindingSink strict;
    resolve_some(checkpoint_, std::move(pieces), 1, strict);
  }

  StateTensor read_part(TensorIndex t, const ShardInfo& info) {
    const TensorInfo& tensor = checkpoint_.tensors[t];
    const uint64_t item = item_size(tensor.dtype);
    auto bytes = std::make_shared<std::vector<std::byte>>(info.count() * item);
    gatherer_->read(t, whole_region(tensor), info.begin * item, info.end * item, *bytes);
    return {tensor.dtype, local_shape(info), std::shared_ptr<const void>(bytes, bytes->data())};
  }

  uint64_t read_step(const Restored& p) {
    const SavedField& field = p.state->fields.find("step")->second;
    const std::string key = p.shard->info().fqn + ".step";
    double step = -1;
    if (field.tensor != kNoTensor) {
      const TensorInfo& tensor = checkpoint_.tensors[field.tensor];
      if (count(tensor.shape) != 1 || !is_numeric(tensor.dtype)) throw Error(Exit::damaged, "optimizer's step is no number").key(key);
      std::vector<std::byte> bytes(item_size(tensor.dtype));
      gatherer_->read(field.tensor, whole_region(tensor), 0, bytes.size(), bytes);
      step = element_value(tensor.dtype, bytes.data());
    } else if (field.value != nullptr && field.value->is(Kind::integer)) {
      step = static_cast<double>(field.value->as_integer());
    } else if (field.value != nullptr && field.value->is(Kind::real)) {
      step = field.value->as_real();
    }
    if (!(step >= 0) || step != std::floor(step) || step > 0x1p53) {
      throw Error(Exit::damaged, "optimizer's step is no number of steps").key(key).found_only(fmt::format("{}", step));
    }
    return static_cast<uint64_t>(step);
  }

  // Parameters that the optimizer does not have: as they are held.
  void set_frozen() {
    for (const Restored& p : parameters_) {
      const uint64_t n = p.shard->info().count();
      if (p.id || n == 0) continue;
      const at::Tensor local = p.shard->local();
      const std::span<const std::byte> values(static_cast<const std::byte*>(p.master.data.get()), n * sizeof(float));
      const std::span<std::byte> target(static_cast<std::byte*>(local.mutable_data_ptr()), local.nbytes());
      const DType dtype = dtype_of(local.scalar_type());
      if (dtype == DType::float32) std::memcpy(target.data(), values.data(), values.size());
      else cast(DType::float32, dtype, values, target);
    }
  }

  Checkpoint& checkpoint_;
  TrainingState& state_;
  Communicator& world_;
  const RestoreOptions& options_;
  SavedState saved_;
  ParameterValues weights_;
  std::vector<Restored> parameters_;       // in the model's order
  std::optional<Gatherer> gatherer_;
  RestoreReport report_;
};

}  // namespace

RestoreReport restore_training_state(Checkpoint& checkpoint, TrainingState& state, Communicator& world, const RestoreOptions& options) {
  return Restore(checkpoint, state, world, options).run();
}

Opened find_latest(const FormatList& formats, const std::string& run_directory, FindingSink& sink) {
  try {
    return open_checkpoint(formats, run_directory, sink);
  } catch (const Error& e) {
    if (e.code() != Exit::unsupported || stat_path(run_directory).kind != FileKind::directory) throw;
    throw Error(Exit::failed, "no checkpoint to resume from").at(run_directory);
  }
}

}  // namespace fsdpctl::train
