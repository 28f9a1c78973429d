// Rotation: older saves of a run make room for newer ones.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpctl::train {

// Removes what training saved beside `newest` (which is published) under names of the same series, all but the `keep` last
// ones, `newest` counted: "step-100" of "step-300". Nothing else is touched: no checkpoint without our manifest, or with one that
// says that it was converted or copied from elsewhere, and nothing newer. Returns the paths that were removed. `keep` 0: none.
std::vector<std::string> remove_old_saves(const std::string& newest, uint64_t keep);

}  // namespace fsdpctl::train
