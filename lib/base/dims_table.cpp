#include "lib/base/dims_table.h"

#include <algorithm>
#include <cstdint>

namespace fsdpctl {

Dims DimsTable::store(Dims dims) {
  uint64_t hash = dims.size();
  for (int64_t n : dims) hash = (hash ^ static_cast<uint64_t>(n)) * 0x9E3779B97F4A7C15u;
  Dims& known = known_[hash >> (64 - kBits)];
  if (known.size() != dims.size() || !std::equal(known.begin(), known.end(), dims.begin())) known = arena_.store(dims);
  return known;
}

}  // namespace fsdpctl
