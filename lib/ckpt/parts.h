// Parts: which leaves of the tree are model, optimizer and other state. A view; nothing is stored.
//
// Rules, first match wins:
//   optimizer  below a mapping with both `state` and `param_groups` (nested style), or keys
//              `state.<fqn>.<field>` / `param_groups.<fqn>.<hyper>` side by side (flattened style);
//   model      below a top-level key with a known name (model, module, state_dict, model_state_dict, app.model ...) or, where
//              there is none, tensors at the top level that are not RNG state;
//   extra      everything else (scheduler, scaler, RNG, counters, objects).
// Thread-safe; pointers stay valid as long as the checkpoint's tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

enum class Part : uint8_t { model, optimizer, extra };
std::string_view part_name(Part part);     // "model"

struct LeafInfo {
  Part part = Part::extra;
  std::string path;          // the key: elements joined by dots
  std::string fqn;           // parameter or buffer; optimizer: the parameter's name or id ("0"); extra: empty
  std::string field;         // optimizer state: "exp_avg"; group fields and extras: empty
  const Value* value = nullptr;
  TensorIndex tensor = kNoTensor;     // when value is a tensor
  bool alias = false;                 // another path to a tensor that was met before
};

// An optimizer in the tree: FQN x field -> leaf, and its param groups.
struct OptimizerGroup {
  std::vector<std::pair<std::string, Value>> fields;    // lr, betas ...; not params
  std::vector<std::string> params;                      // FQNs or ids as text
};
struct OptimizerInfo {
  std::string path;               // where it is: "optim"; empty for a bare optimizer dict
  bool flattened = false;         // flatten_optimizer_state_dict style
  bool integer_ids = false;       // params are ids, not names
  std::string class_guess;        // "AdamW", "SGD" ... from fields; empty when unsure
  std::vector<OptimizerGroup> groups;
  std::vector<std::string> fields;                      // tensor and number fields, in order of first appearance
  std::vector<std::string> parameters;                  // with state, in order
};

struct Parts {
  std::vector<LeafInfo> leaves;   // in tree order
  std::vector<OptimizerInfo> optimizers;
  // Prefix path of the model in the tree ("model"; empty when the root is the model).
  std::string model_path;
};
Parts find_parts(const Checkpoint& checkpoint);

}  // namespace fsdpctl
