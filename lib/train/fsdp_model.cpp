#include "lib/train/fsdp_model.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lib/base/finding.h"
#include "lib/train/torch_types.h"

namespace fsdpctl::train {

ExecutionOrder::Coming ExecutionOrder::took(Unit* unit) {
  const size_t place = now_.size();
  now_.push_back(unit);
  if (place >= last_.size() || last_[place] != unit) return {};
  const auto at = [&](size_t i) { return i < last_.size() ? last_[i] : nullptr; };
  return {at(place + 1), at(place + 2)};
}

void ExecutionOrder::end_pass() {
  last_ = std::move(now_);
  now_.clear();
}

WrapPolicy wrap_kinds(std::vector<std::string> kinds, UnitSettings settings) {
  return [kinds = std::move(kinds), settings](const Module& module) -> std::optional<UnitSettings> {
    if (std::find(kinds.begin(), kinds.end(), module.kind()) == kinds.end()) return std::nullopt;
    return settings;
  };
}

// One parameter of a unit, as the optimizer sees it.
class FsdpModel::Shard final : public ParameterShard {
 public:
  Shard(Unit& unit, size_t parameter, ShardInfo info) : unit_(unit), parameter_(parameter), info_(std::move(info)) {}

  const ShardInfo& info() const override { return info_; }
  at::Tensor local() const override { return unit_.parameters().local(parameter_); }
  at::Tensor initial_master() const override { return unit_.parameters().take_initial_master(parameter_); }
  at::Tensor gradient() const override { return unit_.gradients().gradient(parameter_); }
  bool has_gradient() const override { return unit_.gradients().has(parameter_); }
  void clear_gradient() override { unit_.gradients().clear(parameter_); }

 private:
  Unit& unit_;
  const size_t parameter_;
  const ShardInfo info_;
};

FsdpModel::FsdpModel(std::unique_ptr<Module> root, const Mesh& mesh, const FsdpOptions& options, Device& device)
    : memory_(device),
      runtime_{.mesh = mesh,
               .placement = options.placement,
               .offload = options.offload_parameters,
               .prefetch = options.prefetch,
               .memory = memory_,
               .micro_batch = {},
               .anchor = at::zeros({1}).set_requires_grad(true),
               .forward_order = {},
               .backward_order = {},
               .kept = {}},
      root_(std::move(root)) {
  name_modules(*root_);
  make_units(options);
  for_each_module(*root_, [&](Module& module) { module.set_micro_batch(&runtime_.micro_batch); });
  make_shards();
}

// In the order of the model's parameters, whatever units they are in.
void FsdpModel::make_shards() {
  struct Owner {
    Unit* unit;
    size_t parameter;
  };
  std::map<const Parameter*, Owner> owners;
  for (const std::unique_ptr<Unit>& unit : units_) {
    const std::vector<NamedParameter>& all = unit->parameters().all();
    for (size_t i = 0; i < all.size(); ++i) owners[all[i].slot.get()] = {unit.get(), i};
  }
  for (const NamedParameter& parameter : named_parameters(*root_)) {
    const Owner owner = owners.at(parameter.slot.get());
    const ShardRun& run = owner.unit->parameters().runs()[owner.parameter];
    ShardInfo info;
    info.fqn = parameter.fqn;
    info.shape = parameter.slot->shape;
    info.begin = run.begin;
    info.end = run.begin + run.count;
    info.placement = runtime_.placement;
    info.replica = runtime_.mesh.replica();
    info.replicas = runtime_.mesh.replicas();
    info.requires_grad = parameter.slot->trainable;
    shards_.push_back(std::make_unique<Shard>(*owner.unit, owner.parameter, std::move(info)));
    shard_pointers_.push_back(shards_.back().get());
  }
}

FsdpModel::~FsdpModel() = default;

void FsdpModel::make_units(const FsdpOptions& options) {
  struct Plan {
    Module* module;
    UnitSettings settings;
    std::vector<NamedParameter> parameters;
  };
  std::vector<Plan> plans;
  struct Owner {
    size_t plan, parameter;
  };
  std::map<const Parameter*, Owner> owners;
  const std::function<void(Module&, size_t)> visit = [&](Module& module, size_t around) {
    size_t plan = around;
    std::optional<UnitSettings> settings;
    if (&module == root_.get()) {
      settings = options.root;
      if (!settings->reshard_after_forward) settings->reshard_after_forward = false;
    } else if (options.policy) {
      settings = options.policy(module);
    }
    if (settings) {
      plan = plans.size();
      plans.push_back({&module, *settings, {}});
    }
    cast_buffers(module, plans[plan].settings.precision);
    for (const auto& [name, slot] : module.parameters()) {
      const std::string fqn = join_fqn(module.fqn(), name);
      const auto known = owners.find(slot.get());
      if (known == owners.end()) {
        owners[slot.get()] = {plan, plans[plan].parameters.size()};
        plans[plan].parameters.push_back({fqn, {}, slot});
        continue;
      }
      NamedParameter& first = plans[known->second.plan].parameters[known->second.parameter];
      if (known->second.plan != plan) {
        throw Error(Exit::usage, "tied parameters are in different units")
            .key(first.fqn)
            .found_only(fqn)
            .try_("a wrap policy that leaves both to one unit");
      }
      first.aliases.push_back(fqn);
    }
    for (const auto& [name, child] : module.children()) visit(*child, plan);
  };
  visit(*root_, 0);
  for (Plan& plan : plans) {
    units_.push_back(std::make_unique<Unit>(runtime_, *plan.module, std::move(plan.parameters), plan.settings));
  }
}

void FsdpModel::cast_buffers(Module& module, const Precision& precision) {
  for (auto& [name, buffer] : module.buffers()) {
    if (!buffer.keep_dtype && buffer.value.is_floating_point()) buffer.value = buffer.value.to(scalar_type(precision.buffers));
  }
}

void FsdpModel::let_go() {
  while (!runtime_.kept.empty()) runtime_.kept.back()->let_go();
}

void FsdpModel::set_values(const ParameterValues& values) {
  let_go();
  for (const std::unique_ptr<Unit>& unit : units_) unit->parameters().set_values(values);
}

void FsdpModel::initialize(uint64_t seed) {
  set_values([seed](const NamedParameter& parameter, uint64_t begin, std::span<float> out) {
    fill_initial(parameter.slot->initial, seed, parameter.fqn, begin, out);
  });
}

namespace {

// Runs a pass; what LibTorch throws becomes an Error.
template <class Body>
auto computing(const char* what, Body body) {
  try {
    return body();
  } catch (const c10::Error& e) {
    throw Error(Exit::failed, what).found_only(e.what_without_backtrace());
  }
}

}  // namespace

Tensors FsdpModel::forward(const Tensors& inputs, const MicroBatch& micro_batch) {
  let_go();   // an optimizer may have been here since
  settle();
  runtime_.micro_batch = micro_batch;
  runtime_.forward_order.abandon_pass();
  Tensors outputs = computing("the model's forward failed", [&] { return (*root_)(inputs); });
  runtime_.forward_order.end_pass();
  settle();
  return outputs;
}

void FsdpModel::backward(const at::Tensor& loss, bool retain_graph) {
  if (loss.numel() != 1) {
    throw Error(Exit::usage, "a loss has one element").found_only(c10::str("shape ", loss.sizes()));
  }
  for (const std::unique_ptr<Unit>& unit : units_) unit->gradients().begin_pass();
  runtime_.backward_order.abandon_pass();
  runtime_.in_backward = true;
  try {
    computing("the model's backward failed", [&] { loss.backward({}, retain_graph); });
  } catch (...) {
    runtime_.in_backward = false;
    throw;
  }
  runtime_.in_backward = false;
  runtime_.backward_order.end_pass();
  end_backward();
}

void FsdpModel::end_backward() {
  if (runtime_.reducing != nullptr) runtime_.reducing->complete();
  // Every unit reduces in every pass, so that ranks which had gradients for it and others agree.
  for (auto unit = units_.rbegin(); unit != units_.rend() && runtime_.synchronises; ++unit) {
    if (!(*unit)->trainable() || (*unit)->gradients().accepted()) continue;
    (*unit)->gradients().accept(Tensors((*unit)->parameters().all().size()));
    (*unit)->gradients().complete();
  }
  for (const std::unique_ptr<Unit>& unit : units_) unit->gradients().finish_pass();
  settle();
}

void FsdpModel::settle() {
  for (const std::unique_ptr<Unit>& unit : units_) unit->parameters().drop_unused();
}

void FsdpModel::average_gradients(uint64_t micro_batches) {
  for (const std::unique_ptr<Unit>& unit : units_) unit->gradients().divide(static_cast<float>(micro_batches));
}

}  // namespace fsdpctl::train
