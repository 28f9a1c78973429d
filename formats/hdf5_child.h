// What the child processes share that run HDF5's parser (formats/isolated.h): the file, opened so that it cannot do harm.
#pragma once

#include <string>
#include <string_view>

#include "formats/hdf5_types.h"
#include "lib/base/finding.h"

namespace fsdpctl {

// Read-only, without plugins and locks, errors silent: they become Errors of ours. Only in a child: it changes the environment.
Hdf5Id open_hdf5(const std::string& path);

// For throwing: what the library failed to do, with the object of this path in the file.
Error hdf5_damage(std::string_view doing, const std::string& path);

}  // namespace fsdpctl
