// The format that output shall have, as a flag or a config names it.
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/format.h"

namespace fsdpctl {

// Names of those that can be written.
std::vector<std::string> format_names(const FormatList& formats);
// "a|b|c", as a flag's type.
std::string format_choices(const FormatList& formats);

// Error(usage) that names `option` and the nearest format.
const Format* parse_format(const std::string& option, const std::string& text, const FormatList& formats);

}  // namespace fsdpctl
