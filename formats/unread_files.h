// What lies beside a checkpoint in its directory and looks like a checkpoint too: Hugging Face's Trainer puts the optimizer, the scheduler
// and random states into files of their own. They are not read along, and that must not go unsaid.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/base/finding.h"
#include "lib/ckpt/source.h"

namespace fsdpctl {

// By its ending: .pt, .pth, .bin, .ckpt, .distcp.
bool is_other_checkpoint_file(std::string_view name);

// A warning that names them, and how to read one; nothing where there are none.
void report_unread_files(const Source& directory, const std::vector<std::string>& names, FindingSink& sink);

// Is it that warning?
bool is_unread_files_report(const Finding& finding);

// "a, b, c and 5 more"
std::string some_names(const std::vector<std::string>& names);

}  // namespace fsdpctl
