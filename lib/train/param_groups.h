// Param groups: which parameters are updated with which options, chosen by patterns over FQNs. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/train/parameter_shard.h"

namespace fsdpctl::train {

enum class OptimizerKind : uint8_t { adamw, adam, sgd };
std::string_view optimizer_name(OptimizerKind kind);            // "adamw"
std::string_view optimizer_class(OptimizerKind kind);           // torch.optim's: "AdamW"

// As torch.optim's classes take them; each kind looks at its own.
struct GroupOptions {
  double lr = 1e-3;
  double weight_decay = 0.01;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;   // adamw, adam
  double momentum = 0;                             // sgd
};

struct GroupRule {
  std::string match;   // a glob over FQNs
  std::optional<double> lr, weight_decay, beta1, beta2, eps, momentum;   // instead of the defaults
};

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  GroupOptions defaults;
  std::vector<GroupRule> rules;            // the first that matches a parameter counts
  bool decay_one_dimensional = false;      // weight decay for biases and norms that no rule matches
};

struct ParamGroup {
  GroupOptions options;                    // `lr` is that of the last step: a schedule moves it
  double initial_lr = 0;
  std::vector<size_t> parameters;          // indices of the shards given
};

// One group for each rule, then those that no rule matches: with weight decay, without. Empty ones are left out, as are
// parameters that need no gradient. Error(usage) for a rule that matches no parameter and for impossible options.
std::vector<ParamGroup> make_param_groups(const OptimizerOptions& options, std::span<ParameterShard* const> shards);

// Moments of a parameter: 2 for adamw and adam; 1 for sgd, 0 without momentum.
int moment_count(OptimizerKind kind, const GroupOptions& options);

}  // namespace fsdpctl::train
