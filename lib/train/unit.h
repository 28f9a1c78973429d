// A unit: a module, and those below it that are in no unit of their own, whose parameters are gathered and released together.
//
// Autograd sees a call of a unit as one operation. Within, the unit runs its module on inputs cut off from the graph
// around, and keeps the graph that comes of it, or runs the module again in backward (`replay`: activation checkpointing).
// So what happens before and after its forward and backward is plain code, and the graph outside never sees parameters:
// gradients of gradients are refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/train/unit_gradients.h"
#include "lib/train/unit_parameters.h"

namespace fsdpctl::train {

struct UnitSettings {
  Precision precision;
  bool replay = false;
  // Whether parameters are released between forward and backward. Not said: yes, but for the root unit.
  std::optional<bool> reshard_after_forward = {};
};

class Unit final : public Runner {
 public:
  Unit(Runtime& runtime, Module& module, std::vector<NamedParameter> parameters, const UnitSettings& settings);
  ~Unit() override;

  Tensors run(Module& module, const Tensors& inputs) override;

  const std::string& name() const { return parameters_.unit(); }
  const UnitSettings& settings() const { return settings_; }
  UnitParameters& parameters() { return parameters_; }
  UnitGradients& gradients() { return gradients_; }
  bool trainable() const { return trainable_; }   // any of its parameters
  void let_go() noexcept;                         // of parameters that were kept for backward

 private:
  friend struct UnitFunction;
  friend class Holding;
  Tensors compute(const Tensors& inputs);         // in the grad mode at hand, with the parameters there
  bool needs_graph(const Tensors& inputs) const;
  void keep();                                    // what is gathered, until backward

  Runtime& runtime_;
  Module& module_;
  const UnitSettings settings_;
  UnitParameters parameters_;
  UnitGradients gradients_;
  bool trainable_;
  bool trains_below_;                             // or of a unit below
  bool kept_ = false;
};

}  // namespace fsdpctl::train
