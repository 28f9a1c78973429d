// Where files lie that do not outlive the process.
#pragma once

#include <string>

namespace fsdpctl {

// $TMPDIR where it is set and not empty, else /tmp.
std::string temporary_directory();

}  // namespace fsdpctl
