// First values of parameters, by position: element i of a parameter is a function of (seed, FQN, i) alone. So every rank
// makes just what it holds, and the world size does not matter.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fsdpctl::train {

struct Initial {
  enum Kind : uint8_t {
    zeros,
    ones,
    normal,    // mean 0, standard deviation `size`
    uniform,   // [-size, size)
  } kind = zeros;
  double size = 0;
};

// Elements [begin, begin + out.size()) of the parameter's row-major order.
void fill_initial(const Initial& initial, uint64_t seed, std::string_view fqn, uint64_t begin, std::span<float> out);

// A number for (seed, name, a, b) that no other combination shares except by chance: seeds of generators.
uint64_t derived_seed(uint64_t seed, std::string_view name, uint64_t a = 0, uint64_t b = 0);

}  // namespace fsdpctl::train
