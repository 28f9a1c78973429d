#include "lib/train/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "lib/base/finding.h"
#include "lib/train/torch_types.h"

namespace fsdpctl::train {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The unit's parameters are there while this lives.
class Holding {
 public:
  explicit Holding(Unit& unit) : unit_(&unit) {
    unit.parameters_.acquire();
    Runtime& runtime = unit.runtime_;
    ExecutionOrder& order = runtime.in_backward ? runtime.backward_order : runtime.forward_order;
    const ExecutionOrder::Coming coming = order.took(&unit);
    if (!runtime.prefetch) return;
    if (coming.next != nullptr) coming.next->parameters_.prefetch();
    if (coming.after != nullptr) coming.after->parameters_.start_copy();
  }
  ~Holding() { end(); }
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;
  void end() noexcept {
    if (unit_ != nullptr) std::exchange(unit_, nullptr)->parameters_.release();
  }

 private:
  Unit* unit_;
};

// Sets a value for as long as this lives.
template <class T>
class Setting {
 public:
  Setting(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Setting() { variable_ = before_; }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  T& variable_;
  const T before_;
};

// One call of a unit, from its forward to its backward.
struct UnitCall : torch::CustomClassHolder {
  Unit* unit = nullptr;
  MicroBatch micro_batch;
  Tensors inputs;                       // cut off from the graph around
  std::vector<int64_t> versions;        // of the inputs: changed ones are noticed
  Tensors outputs;                      // with the inner graph; empty if it will be made again
  std::vector<c10::intrusive_ptr<UnitCall>> inner;   // calls in that graph
  bool finished = false;                // it has no graph any more

  bool can_run_backward() const {
    if (finished) return false;
    for (const auto& call : inner) {
      if (!call->can_run_backward()) return false;
    }
    return true;
  }
  void finish() {
    inputs.clear();
    outputs.clear();
    inner.clear();
    finished = true;
  }
};

struct UnitFunction : torch::autograd::Function<UnitFunction> {
  // The anchor requires a gradient, so that the unit has a backward even if no input does.
  static variable_list forward(AutogradContext* context, int64_t unit, at::TensorList inputs, const at::Tensor& anchor);
  static variable_list backward(AutogradContext* context, variable_list output_gradients);

 private:
  static variable_list inner_gradients(UnitCall& call, const Tensors& outputs, const variable_list& output_gradients, bool keep);
};

variable_list UnitFunction::forward(AutogradContext* context, int64_t unit_address, at::TensorList inputs, const at::Tensor&) {
  Unit& unit = *reinterpret_cast<Unit*>(unit_address);   // NOLINT: arguments that are no tensors are numbers
  Runtime& runtime = unit.runtime_;
  const auto call = c10::make_intrusive<UnitCall>();
  call->unit = &unit;
  call->micro_batch = runtime.micro_batch;
  for (const at::Tensor& input : inputs) {
    call->inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    call->versions.push_back(static_cast<int64_t>(input._version()));
  }
  auto* outer = static_cast<UnitCall*>(runtime.call);
  Tensors outputs;
  {
    const Holding holding(unit);
    const Setting<void*> current(runtime.call, call.get());
    const at::AutoGradMode with_graph(!unit.settings_.replay);
    outputs = unit.compute(call->inputs);
    unit.keep();
  }
  variable_list results, without_gradient;
  for (const at::Tensor& output : outputs) {
    results.push_back(output.detach());
    const bool differentiable = unit.settings_.replay ? output.is_floating_point() : output.requires_grad();
    if (!differentiable) without_gradient.push_back(results.back());
  }
  if (!unit.settings_.replay) call->outputs = std::move(outputs);
  if (outer != nullptr) outer->inner.push_back(call);
  context->mark_non_differentiable(without_gradient);
  context->set_materialize_grads(false);
  context->saved_data["call"] = c10::IValue::make_capsule(call);
  return results;
}

variable_list UnitFunction::backward(AutogradContext* context, variable_list output_gradients) {
  const c10::intrusive_ptr<torch::CustomClassHolder> held = context->saved_data["call"].toCapsule();
  auto& call = static_cast<UnitCall&>(*held);
  Unit& unit = *call.unit;
  Runtime& runtime = unit.runtime_;
  if (at::GradMode::is_enabled()) {
    throw Error(Exit::unsupported, "units have no gradients of gradients").key(unit.name());
  }
  if (!call.can_run_backward()) {
    throw Error(Exit::failed, "backward runs a second time through a unit that kept no graph")
        .key(unit.name())
        .try_("retain_graph = true in the first backward; units that replay their forward have one backward only");
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.versions[i] == static_cast<int64_t>(call.inputs[i]._version())) continue;
    throw Error(Exit::failed, "an input of a unit was changed between forward and backward").key(unit.name());
  }
  const bool keep = torch::autograd::get_current_graph_task_keep_graph() && !unit.settings_.replay;

  variable_list gradients;
  {
    const Holding holding(unit);
    unit.let_go();
    Tensors outputs = call.outputs;
    if (unit.settings_.replay) {
      const Setting<MicroBatch> then(runtime.micro_batch, call.micro_batch);
      const Setting<void*> current(runtime.call, nullptr);
      const at::AutoGradMode with_graph(true);
      outputs = unit.compute(call.inputs);
    }
    gradients = inner_gradients(call, outputs, output_gradients, keep);
  }
  const size_t inputs = call.inputs.size();
  if (!keep) call.finish();
  if (unit.trainable_ && !gradients.empty()) {
    if (runtime.reducing != nullptr) runtime.reducing->complete();
    Tensors of_parameters(gradients.begin() + static_cast<std::ptrdiff_t>(inputs), gradients.end());
    unit.gradients_.accept(of_parameters);
  }
  variable_list results(inputs + 2);   // also of the unit's address and of the anchor: none
  for (size_t i = 0; i < inputs && !gradients.empty(); ++i) results[i + 1] = gradients[i];
  return results;
}

// Of all inputs, then of all parameters; undefined where there is none. Empty if nothing that was computed matters.
variable_list UnitFunction::inner_gradients(UnitCall& call, const Tensors& outputs, const variable_list& output_gradients,
                                            bool keep) {
  variable_list roots, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !output_gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(output_gradients[i]);
  }
  if (roots.empty()) return {};

  const std::vector<NamedParameter>& parameters = call.unit->parameters_.all();
  variable_list leaves;
  std::vector<size_t> places;
  const auto add_leaf = [&](const at::Tensor& tensor, size_t place) {
    if (!tensor.requires_grad()) return;
    leaves.push_back(tensor);
    places.push_back(place);
  };
  for (size_t i = 0; i < call.inputs.size(); ++i) add_leaf(call.inputs[i], i);
  for (size_t i = 0; i < parameters.size(); ++i) add_leaf(parameters[i].slot->value, call.inputs.size() + i);
  // Autograd runs only what leads to a leaf of the list; a unit below whose inputs need no gradient leads to the anchor alone.
  leaves.push_back(call.unit->runtime_.anchor);

  const variable_list found = torch::autograd::grad(roots, leaves, seeds, keep, /*create_graph=*/false, /*allow_unused=*/true);
  variable_list gradients(call.inputs.size() + parameters.size());
  for (size_t i = 0; i < places.size(); ++i) gradients[places[i]] = found[i];
  return gradients;
}

Unit::Unit(Runtime& runtime, Module& module, std::vector<NamedParameter> parameters, const UnitSettings& settings)
    : runtime_(runtime),
      module_(module),
      settings_(settings),
      parameters_(runtime, module.fqn().empty() ? "root" : module.fqn(), std::move(parameters), settings.precision.compute),
      gradients_(runtime, parameters_, settings.precision.reduce),
      trainable_(parameters_.any_trainable()),
      trains_below_(trainable_) {
  for (const NamedParameter& p : named_parameters(module)) trains_below_ |= p.slot->trainable;
  module.set_runner(this);
}

Unit::~Unit() {
  let_go();
  module_.set_runner(nullptr);
}

void Unit::keep() {
  if (kept_ || settings_.reshard_after_forward.value_or(true)) return;
  runtime_.kept.push_back(this);
  parameters_.acquire();
  kept_ = true;
}

void Unit::let_go() noexcept {
  if (!std::exchange(kept_, false)) return;
  std::erase(runtime_.kept, this);
  parameters_.release();
}

bool Unit::needs_graph(const Tensors& inputs) const {
  if (!at::GradMode::is_enabled()) return false;
  bool needed = trains_below_;
  for (const at::Tensor& input : inputs) needed |= input.requires_grad();
  return needed;
}

Tensors Unit::run(Module&, const Tensors& inputs) {
  if (!needs_graph(inputs)) {
    const Holding holding(*this);
    const at::NoGradGuard no_grad;
    return compute(inputs);
  }
  return UnitFunction::apply(reinterpret_cast<int64_t>(this), at::TensorList(inputs), runtime_.anchor);
}

Tensors Unit::compute(const Tensors& inputs) {
  const at::ScalarType dtype = scalar_type(settings_.precision.compute);
  Tensors cast;
  for (const at::Tensor& input : inputs) cast.push_back(input.is_floating_point() ? input.to(dtype) : input);
  return module_.forward(cast);
}

}  // namespace fsdpctl::train
