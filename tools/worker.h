// --worker: which share of a command's work this process does.
#pragma once

#include <string>

#include "lib/ckpt/engine.h"
#include "lib/comm/launch.h"

namespace fsdpctl {

// "I/N" with I from 0 to N - 1; or "auto", which takes rank and world size from what a launcher has put into the environment.
// Error(usage) for anything else, and for "auto" where no launcher has.
Share parse_worker(const std::string& text, const Variables& variable = process_variable);

}  // namespace fsdpctl
