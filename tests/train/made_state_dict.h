// State dicts of made runs, and changed ones.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/train/made_run.h"

namespace fsdpctl::train {

inline RunOptions options_of(OptimizerKind kind, at::ScalarType dtype = at::kBFloat16, ShardPlacement placement = ShardPlacement::flat) {
  RunOptions options;
  options.optimizer = made_options(kind);
  options.dtype = dtype;
  options.placement = placement;
  return options;
}

// A dict with the value at `path` replaced, or left out.
inline Value changed(const Value& value, std::span<const std::string> path, const std::optional<Value>& replacement) {
  if (path.empty()) return *replacement;
  if (value.is_sequence()) {
    std::vector<Value> items = value.items();
    Value& item = items.at(std::stoul(path[0]));
    item = changed(item, path.subspan(1), replacement);
    return Value::sequence(value.kind(), std::move(items));
  }
  std::vector<Entry> entries;
  for (const Entry& entry : value.entries()) {
    if (key_text(entry.key) != path[0]) entries.push_back(entry);
    else if (path.size() > 1 || replacement) entries.push_back({entry.key, changed(entry.value, path.subspan(1), replacement)});
  }
  return Value::mapping(value.kind(), std::move(entries));
}
inline StateDict with(const StateDict& dict, const std::vector<std::string>& path, const std::optional<Value>& replacement) {
  return {changed(dict.tree, path, replacement), dict.tensors};
}
inline StateDict without(const StateDict& dict, const std::vector<std::string>& path) { return with(dict, path, std::nullopt); }

// The dicts of all ranks of a run of `steps` steps.
inline std::vector<StateDict> saved_by(int world, ShardPlacement placement, OptimizerKind kind, uint64_t steps = 3) {
  std::vector<StateDict> dicts(static_cast<size_t>(world));
  expect_all_well(run_ranks(world, [&](Communicator& ranks) {
    MadeRun run(ranks, options_of(kind, at::kBFloat16, placement));
    for (uint64_t step = 0; step < steps; ++step) run.step(step);
    dicts[static_cast<size_t>(ranks.rank())] = run.optimizer->state_dict();
  }));
  return dicts;
}

}  // namespace fsdpctl::train
