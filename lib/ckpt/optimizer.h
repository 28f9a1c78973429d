// Optimizers in the tree: how to tell one from other mappings, its param groups, and which class of torch.optim wrote it.
//
// Optimizers do not record their class; groups list the constructor's arguments. Facts are torch 2.13's torch/optim/*.py.
// Pure; thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "lib/ckpt/parts.h"

namespace fsdpctl {

enum class OptimizerStyle : uint8_t { none, nested, flattened };
// What kind of optimizer this mapping is, if one.
OptimizerStyle optimizer_style(const Value& mapping);

// Keys of the flattened style: `state.<fqn>.<field>`, `param_groups.<fqn>.<hyper>`. The last element has no dot.
inline constexpr std::string_view kFlatState = "state.", kFlatGroups = "param_groups.";
struct FlatKey {
  std::string_view fqn, last;
};
std::optional<FlatKey> split_flattened(std::string_view key, std::string_view prefix);

// The key where it is a string, else empty.
inline std::string_view key_of(const Entry& entry) { return entry.key.is(Kind::string) ? entry.key.text() : std::string_view(); }

// Parameter ids as text -> names that the groups record for them (param_names).
using IdNames = std::unordered_map<std::string_view, std::string_view>;
// Fills in groups, integer_ids and named of `info`, whose value, path and flattened are set. Texts made on the way go to `arena`.
IdNames read_param_groups(OptimizerInfo& info, Arena& arena);

// "AdamW", "SGD" ... from path, groups and fields; empty when unsure.
std::string guess_class(const OptimizerInfo& info);

// Group fields that releases after 1.11 added to this class, with their constructor's default, in the constructor's order.
// Empty for classes that torch.optim does not have.
std::span<const std::pair<std::string_view, Value>> later_group_fields(std::string_view optimizer_class);

}  // namespace fsdpctl
