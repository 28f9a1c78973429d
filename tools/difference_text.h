// Differences as lines and as JSON, for diff and verify --against.
#pragma once

#include <string>

#include "lib/ckpt/diff.h"
#include "tools/printer.h"

namespace fsdpctl {

// What the text says of what one side alone has.
struct DifferenceWords {
  std::string missing = "only in the first";
  std::string added = "only in the second";
};

void print_differences(const std::vector<Difference>& differences, Printer& printer, const DifferenceWords& words = {});

}  // namespace fsdpctl
