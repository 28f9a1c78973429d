// Starting fsdpctl-train, as git starts its subcommands: the program beside this one, else the one in PATH.
#pragma once

#include <optional>
#include <string>

#include "tools/command.h"

namespace fsdpctl {

// What `fsdpctl-train --version` prints.
std::string training_version();

// Runs fsdpctl-train with the command line of `context`: as `nproc` ranks on this machine, whose first failure is thrown, or, where
// none are asked for, in place of this process. Returns the ranks' exit code.
// Error(unsupported) where the program is missing, cannot start or is of another version.
Exit start_training(std::optional<int> nproc, const Context& context);

// Ranks of the run: those to be started, or those that a launcher has. Error(usage) where both are said.
int ranks_to_be(std::optional<int> nproc);
int parse_nproc(const std::string& name, const std::string& text);

}  // namespace fsdpctl
