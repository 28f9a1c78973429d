// Stores dims in an arena, most of which were stored before: a big catalog has millions, but mostly the same few thousand.
#pragma once

#include <cstddef>
#include <vector>

#include "lib/base/arena.h"

namespace fsdpctl {

// Those that it remembers it stores once. Not thread-safe; must not outlive the arena.
class DimsTable {
 public:
  explicit DimsTable(Arena& arena) : arena_(arena), known_(size_t{1} << kBits) {}
  Dims store(Dims dims);

 private:
  static constexpr unsigned kBits = 12;
  Arena& arena_;
  std::vector<Dims> known_;   // by a hash
};

}  // namespace fsdpctl
