// Variables of the environment, as a value: what reads them can be given a table instead.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace fsdpctl {

// The value of a variable; nullopt where it is not set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

// This process's.
std::optional<std::string> process_variable(const char* name);

}  // namespace fsdpctl
