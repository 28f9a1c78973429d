// Differences as lines and as JSON, for diff and verify --against.
#pragma once

#include "lib/ckpt/diff.h"
#include "tools/printer.h"

namespace fsdpctl {

void print_differences(const std::vector<Difference>& differences, Printer& printer);

}  // namespace fsdpctl
