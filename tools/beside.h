// Files that lie in a checkpoint's directory and are no part of it: a framework's own state, configurations, tokenizers.
// No command carries them along, and that must not go unsaid.
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"

namespace fsdpctl {

// By name, in order; none of a single file. Not the checkpoint's own files, stale ones included, nor manifests of fsdpctl,
// hidden and unfinished files.
std::vector<std::string> files_beside(const Opened& opened);

// One warning that names them, less those that the format has reported to `sink` already.
void report_beside(const Opened& opened, FindingSink& sink);

// The same as changes, all of them: kind "not carried", key the file's name.
std::vector<Change> changes_of_beside(const Opened& opened);

}  // namespace fsdpctl
