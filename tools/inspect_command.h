// inspect: what is this checkpoint, and is it whole?
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "tools/command.h"
#include "tools/overview.h"

namespace fsdpctl {

struct InspectOptions {
  std::vector<std::string> paths;
  bool tensors = false, pieces = false, groups = false, extra = false;
  std::string name;  // glob over keys and FQNs; empty: all
  bool fingerprint = false, sha256 = false;
  bool follow_links = false;
};

// Inspects each path, goes on after one that fails, and returns the worst exit code.
Exit run_inspect(const InspectOptions& options, const Context& context);

// Everything about one checkpoint that its printing needs.
struct Inspected {
  std::string path;
  Opened opened;
  Parts parts;
  Overview overview;
  std::vector<Finding> findings;
  std::vector<TensorSum> sums;          // with --fingerprint, by tensor
  std::vector<std::string> sha256;      // with --sha256, by tensor; empty where not asked for
  std::optional<uint64_t> fingerprint;  // of the whole checkpoint
};

void print_overview(const Inspected& inspected, Printer& printer);  // inspect_overview.cpp
void print_listings(const Inspected& inspected, const InspectOptions& options,
                    Printer& printer);  // inspect_listings.cpp
bool name_matches(const InspectOptions& options, const LeafInfo& leaf);

}  // namespace fsdpctl
