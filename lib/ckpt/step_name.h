// StepName: what a directory's name says about when in a run it was saved.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdpctl {

// "epoch=3-step=0100.ckpt" is step {3, 100} of the series "epoch=#-step=#.ckpt".
struct StepName {
  std::string series;
  // Without leading zeros, the most significant first. Text, as they may be longer than any integer.
  std::vector<std::string> numbers;
};

// nullopt where the name names no step: its last number must be all of the name, or follow a word that frameworks use for
// steps (checkpoint-100, global_step100, iter_0000100, epoch_3, ep1-ba100). In full_rank0 and optimizer_1 it counts something else.
std::optional<StepName> parse_step_name(std::string_view name);

// Was `a` saved before `b`, of the same series?
bool earlier(const StepName& a, const StepName& b);

}  // namespace fsdpctl
