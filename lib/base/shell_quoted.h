// Hints are commands to paste: whatever stands in one and is not ours goes through here.
#pragma once

#include <string>

namespace fsdpctl {

// One argument as a shell needs it: a'b -> 'a'\''b'.
std::string shell_quoted(const std::string& argument);
// What shell_quoted made it of.
std::string shell_unquoted(const std::string& quoted);

}  // namespace fsdpctl
