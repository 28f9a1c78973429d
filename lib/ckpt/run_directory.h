// Run directories: what a training run leaves behind, one numbered sub-directory for each step it saved. Private to lib/ckpt.
#pragma once

#include <optional>

#include "lib/ckpt/format.h"

namespace fsdpctl {

struct Recognized {
  const Format* format = nullptr;
  Match match;
};
std::optional<Recognized> recognize(const FormatList& formats, Source& source);   // the strongest match

// Opens the newest complete step: a sub-directory that is named as a step (step_name.h), or the one checkpoint within it. Damaged
// newer ones are listed in Opened::passed_over and reported as warnings; anything else that is wrong with them ends it. nullopt: no checkpoint is there.
// Error(refused): two kinds of steps (step-10, epoch-2), two checkpoints in one step, or checkpoints that are no steps; they are
// named. Error(damaged): no step is complete.
std::optional<Opened> open_newest_step(const FormatList& formats, const Source& run, FindingSink& sink, OpenOptions options);

}  // namespace fsdpctl
