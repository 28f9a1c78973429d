// The known name that a mistyped one was probably meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdpctl {

// The nearest of `known` by edit distance (insert, delete, replace, swap of neighbours), "" when none is near.
std::string nearest_name(std::string_view typed, const std::vector<std::string>& known);

}  // namespace fsdpctl
