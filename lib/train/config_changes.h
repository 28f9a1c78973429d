// What differs between the configuration of a checkpoint and a run's. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/train/restore_training_state.h"

namespace fsdpctl::train {

// Both are JSON objects as text; nested ones are compared member by member, everything else as a whole. In the order of the keys;
// those at or below `left_out` are not. Error(damaged) where `saved` is none.
std::vector<ConfigChange> config_changes(std::string_view saved, std::string_view now, std::span<const std::string> left_out);

// Is `key` one of `keys`, or below one?
bool is_at_or_below(std::string_view key, std::span<const std::string> keys);

}  // namespace fsdpctl::train
