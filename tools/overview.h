// Overview: what a checkpoint is, in numbers and short facts. Made by inspect, printed by inspect_overview.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/ckpt/format.h"
#include "lib/ckpt/manifest.h"
#include "lib/ckpt/parts.h"
#include "lib/ckpt/training_state.h"

namespace fsdpctl {

struct DTypeTotal {
  DType dtype = DType::float32;
  uint64_t tensors = 0, bytes = 0;
};

// Tensors of one part, each counted once (replicas and aliases are not).
struct PartTotal {
  uint64_t tensors = 0, elements = 0, bytes = 0;
  std::vector<DTypeTotal> dtypes;  // most bytes first
};

struct OptimizerOverview {
  const OptimizerInfo* info = nullptr;
  std::optional<StepRange> step;
};

struct Overview {
  PartTotal parts[3];  // by Part
  uint64_t aliases = 0;
  std::vector<std::pair<std::string, uint64_t>> placements;  // text, tensors; most first
  std::vector<OptimizerOverview> optimizers;
  std::vector<StateEntry> state;
  std::optional<Manifest> manifest;
  uint64_t file_bytes = 0;  // of data_files
};

// Reads a few scalars (steps) and the manifest, no other data. What goes wrong there is reported to `sink`.
Overview make_overview(Opened& opened, const Parts& parts, const EngineOptions& options, FindingSink& sink);

}  // namespace fsdpctl
