// Opening what the user named, and saying what was taken.
#pragma once

#include <string>

#include "tools/command.h"

namespace fsdpctl {

// open_checkpoint, with a note that names the step taken from a run directory, and with -v what was recognised.
Opened open_input(const Context& context, const std::string& path, FindingSink& sink, bool follow_links);

}  // namespace fsdpctl
