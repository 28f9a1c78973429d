// Diff: what differs between two checkpoints, whatever their formats, placements and world sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"

namespace fsdpctl {

struct DiffOptions {
  double rtol = 0, atol = 0;     // equal when |a - b| <= atol + rtol * |b|; both 0: bit equality
  std::string name_glob;         // only keys that match
  bool structure_only = false;
  EngineOptions engine;
};

struct Difference {
  enum class Kind : uint8_t { missing, added, dtype, shape, values, value, type };   // missing: only in A
  Kind kind = Kind::values;
  std::string key;
  std::string a, b;              // text of both sides
  uint64_t different = 0;        // elements beyond the tolerance
  uint64_t elements = 0;
  double max_abs = 0, max_rel = 0;
  std::vector<int64_t> first_index;
};

struct DiffReport {
  std::vector<Difference> differences;
  uint64_t compared_tensors = 0, compared_values = 0;
  bool by_fingerprint = false;   // equal recorded fingerprints ended it early
};

DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, FindingSink& sink);

}  // namespace fsdpctl
