// Changes as reshard and convert report them: what was done to the content, in lines or JSON.
#pragma once

#include <vector>

#include "lib/ckpt/manifest.h"
#include "tools/printer.h"

namespace fsdpctl {

// In text the first Printer::kMostFindings. Casts that changed no value are summed up only, unless -v asks for all.
void print_changes(const std::vector<Change>& changes, Printer& printer);

}  // namespace fsdpctl
