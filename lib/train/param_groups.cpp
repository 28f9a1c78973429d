#include "lib/train/param_groups.h"

#include <fmt/format.h>

#include <cmath>

#include "lib/base/finding.h"
#include "lib/ckpt/select.h"

namespace fsdpctl::train {
namespace {

void require(bool holds, std::string option, double value, const char* expected) {
  if (!holds) {
    throw Error(Exit::usage, "impossible option of the optimizer").key(std::move(option)).saw(expected, fmt::format("{}", value));
  }
}

void check(const GroupOptions& o, const std::string& prefix) {
  const auto at_least_0 = [&](const char* name, double value) {
    require(value >= 0 && std::isfinite(value), prefix + name, value, "0 or more");
  };
  const auto below_1 = [&](const char* name, double value) {
    require(value >= 0 && value < 1, prefix + name, value, "at least 0, less than 1");
  };
  at_least_0("lr", o.lr);
  at_least_0("weight_decay", o.weight_decay);
  at_least_0("eps", o.eps);
  at_least_0("momentum", o.momentum);
  below_1("beta1", o.beta1);
  below_1("beta2", o.beta2);
}

GroupOptions with(GroupOptions options, const GroupRule& rule) {
  options.lr = rule.lr.value_or(options.lr);
  options.weight_decay = rule.weight_decay.value_or(options.weight_decay);
  options.beta1 = rule.beta1.value_or(options.beta1);
  options.beta2 = rule.beta2.value_or(options.beta2);
  options.eps = rule.eps.value_or(options.eps);
  options.momentum = rule.momentum.value_or(options.momentum);
  return options;
}

}  // namespace

std::string_view optimizer_name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw: return "adamw";
    case OptimizerKind::adam: return "adam";
    case OptimizerKind::sgd: return "sgd";
  }
  return "";
}

std::string_view optimizer_class(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw: return "AdamW";
    case OptimizerKind::adam: return "Adam";
    case OptimizerKind::sgd: return "SGD";
  }
  return "";
}

std::vector<ParamGroup> make_param_groups(const OptimizerOptions& options, std::span<ParameterShard* const> shards) {
  check(options.defaults, "");
  std::vector<ParamGroup> groups;
  for (size_t r = 0; r < options.rules.size(); ++r) {
    groups.push_back({with(options.defaults, options.rules[r]), 0, {}});
    check(groups.back().options, fmt::format("groups[{}].", r));
  }
  const size_t decayed = groups.size(), plain = decayed + 1;
  groups.resize(decayed + 2, {options.defaults, 0, {}});
  if (!options.decay_one_dimensional) groups[plain].options.weight_decay = 0;

  std::vector<bool> used(options.rules.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    const ShardInfo& info = shards[i]->info();
    size_t group = 0;
    while (group < decayed && !glob_match(options.rules[group].match, info.fqn)) ++group;
    if (group < decayed) used[group] = true;
    else if (info.shape.size() <= 1 && !options.decay_one_dimensional) group = plain;
    if (info.requires_grad) groups[group].parameters.push_back(i);
  }
  for (size_t r = 0; r < options.rules.size(); ++r) {
    if (!used[r]) {
      throw Error(Exit::usage, "a rule for a param group matches no parameter")
          .key(fmt::format("groups[{}].match", r))
          .found_only(options.rules[r].match);
    }
  }
  std::erase_if(groups, [](const ParamGroup& group) { return group.parameters.empty(); });
  for (ParamGroup& group : groups) group.initial_lr = group.options.lr;
  return groups;
}

int moment_count(OptimizerKind kind, const GroupOptions& options) {
  if (kind != OptimizerKind::sgd) return 2;
  return options.momentum != 0 ? 1 : 0;
}

}  // namespace fsdpctl::train
