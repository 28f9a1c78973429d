// Diff: what differs between two checkpoints, whatever their formats, placements and world sizes.
//
// Leaves are paired by what they are (part, FQN, field; the path below the part for other state), not by where a format puts
// them, so a DCP directory with a `model.` prefix compares with a plain safetensors file. What class of container holds a leaf does not
// count, nor whether a key is 0 or "0": that is listed apart. Tensors whose CRC-64 agree are
// equal; only the others are compared element by element.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/format.h"

namespace fsdpctl {

struct DiffOptions {
  double rtol = 0, atol = 0;     // equal when |a - b| <= atol + rtol * |b|; both 0: bit equality
  std::string name_glob;         // only keys that match; empty: all
  bool structure_only = false;   // names, dtypes, shapes; not the values
  bool trust_manifests = true;   // equal recorded fingerprints end it early, without reading the data
  EngineOptions engine;
};

struct Difference {
  // missing: only in A; added: only in B; values: of a tensor; value: of other state; type: a tensor on one side only.
  enum class Kind : uint8_t { missing, added, dtype, shape, values, value, type };
  Kind kind = Kind::values;
  std::string key;               // as in A, or in B when added
  std::string a, b;              // both sides as text (dtype, shape, JSON)
  // values and dtype, for numeric dtypes:
  uint64_t different = 0;        // elements beyond the tolerance
  uint64_t elements = 0;
  double max_abs = 0, max_rel = 0;   // over finite pairs
  std::vector<int64_t> first_index;  // of the first different element
};
std::string_view difference_name(Difference::Kind kind);   // "missing"

// A container of another class with the same content: {"state", "Counter", "dict"}. Not a difference: a path names the same leaf
// whatever holds it.
struct ContainerChange {
  std::string key;               // path in the tree; empty: the root
  std::string a, b;              // "OrderedDict", "tuple", "dict, some keys no strings"
};

struct DiffReport {
  std::vector<Difference> differences;   // in A's order, added ones last
  std::vector<ContainerChange> containers;   // at the same path; not looked for in structure_only or by_fingerprint
  uint64_t compared_tensors = 0, compared_values = 0;
  bool by_fingerprint = false;   // equal recorded fingerprints ended it early
  bool same() const { return differences.empty(); }
};

// Both checkpoints must have been resolved (resolve_pieces). Errors of either are thrown.
DiffReport diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, FindingSink& sink);

}  // namespace fsdpctl
