// Man page and shell completions, made from the command line's tree. The same tree gives the same bytes: no dates of
// today.
#pragma once

#include <string>

#include "tools/command_line.h"

namespace fsdpctl {

std::string man_page(const CommandLine& line);  // roff, fsdpctl(1): all commands
std::string bash_completion(const CommandLine& line);
std::string zsh_completion(const CommandLine& line);
std::string fish_completion(const CommandLine& line);

// The values that an option takes, where they are few: its type is written "auto|always|never".
std::vector<std::string> option_choices(const CLI::Option& option);
// Whether its value, or the argument, names something in the file system.
bool takes_path(const CLI::Option& option);

}  // namespace fsdpctl
