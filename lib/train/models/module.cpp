#include "lib/train/models/module.h"

#include <algorithm>

namespace fsdpctl::train {

ParameterSlot Module::add_parameter(std::string name, Shape shape, Initial initial) {
  auto slot = std::make_shared<Parameter>();
  slot->shape = std::move(shape);
  slot->initial = initial;
  parameters_.emplace_back(std::move(name), slot);
  return slot;
}

size_t Module::add_buffer(std::string name, Buffer buffer) {
  buffers_.emplace_back(std::move(name), std::move(buffer));
  return buffers_.size() - 1;
}

const MicroBatch& Module::micro_batch() const {
  static const MicroBatch none;
  return micro_batch_ != nullptr ? *micro_batch_ : none;
}

void for_each_module(Module& root, const std::function<void(Module&)>& body) {
  body(root);
  for (const auto& [name, child] : root.children()) for_each_module(*child, body);
}

std::string join_fqn(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

void name_modules(Module& root) {
  for_each_module(root, [](Module& module) {
    for (const auto& [name, child] : module.children()) child->fqn_ = join_fqn(module.fqn(), name);
  });
}

std::vector<NamedParameter> named_parameters(Module& root) {
  std::vector<NamedParameter> all;
  for_each_module(root, [&](Module& module) {
    for (const auto& [name, slot] : module.parameters()) {
      const std::string fqn = join_fqn(module.fqn(), name);
      const auto known = std::find_if(all.begin(), all.end(), [&slot = slot](const NamedParameter& p) { return p.slot == slot; });
      if (known != all.end()) {
        known->aliases.push_back(fqn);
      } else {
        all.push_back({fqn, {}, slot});
      }
    }
  });
  return all;
}

}  // namespace fsdpctl::train
