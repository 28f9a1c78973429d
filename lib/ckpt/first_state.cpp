#include "lib/ckpt/first_state.h"

#include <string>
#include <utility>

#include "lib/base/finding.h"
#include "lib/ckpt/parts.h"
#include "lib/ckpt/renumber.h"
#include "lib/ckpt/select.h"

namespace fsdpctl {
namespace {

Value dict(std::vector<std::pair<const char*, Value>> entries) {
  std::vector<Entry> all;
  for (auto& [key, value] : entries) all.push_back({Value::string(key), std::move(value)});
  return Value::mapping(Kind::dict, std::move(all));
}

// As torch.optim.AdamW's state_dict() has it in PyTorch 2.13.
Value default_group(std::vector<Value> params) {
  return dict({{"lr", Value::real(1e-3)},
               {"betas", Value::sequence(Kind::tuple, {Value::real(0.9), Value::real(0.999)})},
               {"eps", Value::real(1e-8)},
               {"weight_decay", Value::real(1e-2)},
               {"amsgrad", Value::boolean(false)},
               {"maximize", Value::boolean(false)},
               {"foreach", Value()},
               {"capturable", Value::boolean(false)},
               {"differentiable", Value::boolean(false)},
               {"fused", Value()},
               {"decoupled_weight_decay", Value::boolean(true)},
               {"params", Value::sequence(Kind::list, std::move(params))}});
}

}  // namespace

Checkpoint first_training_state(const Checkpoint& weights, std::vector<Change>& changes) {
  if (find_parts(weights).model == nullptr) throw Error(Exit::refused, "there are no weights of a model");
  Selection selection;
  selection.optimizer = selection.extra = false;
  selection.cast = DType::float32;
  const Checkpoint model = select(weights, selection, changes);

  const Parts parts = find_parts(model);
  std::vector<Entry> entries;
  std::vector<Value> trained;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor == kNoTensor) {
      changes.push_back({"dropped", std::string(leaf.path), "no tensor"});
      continue;
    }
    entries.push_back({Value::string(leaf.fqn), Value::tensor({leaf.tensor})});
    if (!leaf.alias && dtype_kind(model.tensors[leaf.tensor].dtype) == DTypeKind::floating) trained.push_back(Value::string(leaf.fqn));
  }
  changes.push_back({"added", "optimizer.param_groups", "one of AdamW with PyTorch's defaults; no moments"});
  changes.push_back({"added", "step", "0"});
  changes.push_back({"added", "samples", "0"});
  return with_tree(model, dict({{"model", Value::mapping(Kind::dict, std::move(entries))},
                                {"optimizer", dict({{"state", Value::mapping(Kind::dict)},
                                                    {"param_groups", Value::sequence(Kind::list, {default_group(std::move(trained))})}})},
                                {"step", Value::integer(0)},
                                {"samples", Value::integer(0)}}),
                   nullptr);
}

}  // namespace fsdpctl
