#include "lib/train/initial_value.h"

#include <array>
#include <cmath>
#include <numbers>

namespace fsdpctl::train {
namespace {

using Block = std::array<uint32_t, 4>;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"): a counter and a key to 128 random bits.
Block philox(uint64_t counter, uint64_t key) {
  Block x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0], b = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1,
         static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return x;
}

// In (0, 1), of 53 bits.
double unit_interval(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

// Elements 2 * pair and 2 * pair + 1.
std::array<double, 2> values(const Initial& initial, uint64_t key, uint64_t pair) {
  const Block random = philox(pair, key);
  const double u = unit_interval(random[0], random[1]), v = unit_interval(random[2], random[3]);
  if (initial.kind == Initial::uniform) return {initial.size * (2 * u - 1), initial.size * (2 * v - 1)};
  const double radius = initial.size * std::sqrt(-2 * std::log(u)), angle = 2 * std::numbers::pi * v;   // Box and Muller
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// SplitMix64's finaliser.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t derived_seed(uint64_t seed, std::string_view name, uint64_t a, uint64_t b) {
  uint64_t hash = mix(seed);
  for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c));
  return mix(mix(mix(hash ^ name.size()) ^ a) ^ b);
}

void fill_initial(const Initial& initial, uint64_t seed, std::string_view fqn, uint64_t begin, std::span<float> out) {
  if (initial.kind == Initial::zeros || initial.kind == Initial::ones) {
    for (float& value : out) value = initial.kind == Initial::ones ? 1.0f : 0.0f;
    return;
  }
  const uint64_t key = derived_seed(seed, fqn);
  for (uint64_t i = 0; i < out.size();) {
    const uint64_t element = begin + i;
    const std::array<double, 2> pair = values(initial, key, element / 2);
    out[i++] = static_cast<float>(pair[element % 2]);
    if (element % 2 == 0 && i < out.size()) out[i++] = static_cast<float>(pair[1]);
  }
}

}  // namespace fsdpctl::train
