// Lock: the shape of a checkpoint without its values, for compatibility checks in CI.
//
// One row per tensor (what it is, dtype, shape) and one per other leaf (its path). Placement, world size, format and values
// do not count: two saves of one training setup have the same lock. Stored as JSON with one row per line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/diff.h"

namespace fsdpctl {

struct LockRow {
  std::string part, fqn, field;   // as in LeafInfo; other leaves: fqn is the path below the part
  std::string dtype;              // empty for leaves that are no tensors
  std::vector<int64_t> shape;
};

struct Lock {
  int version = 1;
  std::vector<LockRow> rows;      // sorted by part, fqn, field
};

Lock lock_of(const Checkpoint& checkpoint);
std::string lock_text(const Lock& lock);
Lock parse_lock(std::string_view text, const std::string& file_name);   // Error(usage)
bool looks_like_lock(std::string_view text);                           // begins as lock_text does

// What `now` has otherwise than `before` asks for. Kinds: missing, added, dtype, shape, type.
std::vector<Difference> compare_locks(const Lock& before, const Lock& now);

}  // namespace fsdpctl
