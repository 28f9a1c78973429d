// Parts: which leaves of the tree are model, optimizer and other state. A view; nothing of the tree is copied.
//
// Rules, first match wins:
//   optimizer  below a mapping, at any depth, with `param_groups` (a list) and `state` (nested style), or whose keys are
//              `state.<fqn>.<field>` and `param_groups.<fqn>.<hyper>` (flattened style);
//   model      below a mapping with a known name (model, module, state_dict, model_state_dict ...) that holds tensors, the least
//              deep one (`app.model`, `state.model`); else the tensors right at the root that are no RNG state; else the only
//              mapping at the root that holds nothing but tensors; else everything where the tree holds nothing but tensors;
//   extra      everything else (scheduler, scaler, RNG, counters, objects).
// Linear in the tree. Thread-safe; views stay valid as long as both the Parts and the checkpoint live.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

enum class Part : uint8_t { model, optimizer, extra };
std::string_view part_name(Part part);     // "model"

struct LeafInfo {
  Part part = Part::extra;
  bool alias = false;                 // another path to a tensor that was met before
  TensorIndex tensor = kNoTensor;     // when value is a tensor
  int32_t optimizer = -1;             // index into Parts::optimizers
  std::string_view path;     // the key: elements joined by dots
  std::string_view fqn;      // parameter or buffer; optimizer state: its parameter's name, or id ("0") without one; else empty
  std::string_view field;    // optimizer state: "exp_avg"; group fields and extras: empty
  const Value* value = nullptr;
};

// An optimizer in the tree: FQN x field -> leaf, and its param groups.
struct OptimizerGroup {
  std::vector<std::pair<std::string_view, const Value*>> fields;    // lr, betas ...; not params nor param_names
  std::vector<std::string_view> params;                             // FQNs, or ids as text where no name is recorded
};
struct OptimizerInfo {
  const Value* value = nullptr;   // the mapping
  std::string path;               // where it is: "optim"; empty for a bare optimizer dict
  bool flattened = false;         // flatten_optimizer_state_dict style
  bool integer_ids = false;       // state and groups are keyed by ids
  bool named = true;              // every id has a recorded name (param_names), or names are the keys
  std::string class_guess;        // "AdamW", "SGD" ... from fields; empty when unsure
  std::vector<OptimizerGroup> groups;                   // flattened style: parameters of equal hyperparameters
  std::vector<std::string_view> fields;                 // tensor and number fields, in order of first appearance
  std::vector<std::string_view> parameters;             // with state, in order
};

struct Parts {
  std::vector<LeafInfo> leaves;   // in tree order, as walk_tree visits them
  std::vector<OptimizerInfo> optimizers;
  const Value* model = nullptr;   // the container of the model; null where there is no model
  std::string model_path;         // its path ("model"); empty when it is the root
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();   // texts that the checkpoint does not hold
};
Parts find_parts(const Checkpoint& checkpoint);

// What walk_tree does not descend into.
bool is_leaf(const Value& value);

}  // namespace fsdpctl
