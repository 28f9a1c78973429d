#include "formats/dcp_names.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <utility>

#include "lib/base/finding.h"

namespace fsdpctl {

// The seed differs from run to run, so that no file can make its names collide.
NameTable::NameTable(uint64_t expected)
    : slots_(std::bit_ceil(std::max<size_t>(512, expected)) * 2), seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()) {}

uint32_t NameTable::hash(std::string_view text) const {
  uint64_t h = seed_ ^ (text.size() * 0x9E3779B97F4A7C15u);
  auto mix = [&h](uint64_t word) {
    h = (h ^ word) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
  };
  const char* p = text.data();
  size_t left = text.size();
  for (; left >= 8; p += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  uint64_t rest = 0;
  if (left > 0) std::memcpy(&rest, p, left);
  mix(rest);
  return static_cast<uint32_t>(h);
}

void NameTable::grow() {
  std::vector<Slot> old(2 * slots_.size());
  std::swap(old, slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& moved : old) {
    if (moved.name == 0) continue;
    size_t slot = moved.tag & mask;
    while (slots_[slot].name != 0) slot = (slot + 1) & mask;
    slots_[slot] = moved;
  }
}

uint32_t NameTable::number(std::string_view text) {
  // Names come again in the order in which they came first, and then the table's random access is most of the cost.
  if (last_known_ + 1 < texts_.size() && texts_[last_known_ + 1] == text) return ++last_known_;
  const uint32_t tag = hash(text);
  const size_t mask = slots_.size() - 1;
  size_t slot = tag & mask;
  for (; slots_[slot].name != 0; slot = (slot + 1) & mask) {
    if (slots_[slot].tag == tag && texts_[slots_[slot].name - 1] == text) return last_known_ = slots_[slot].name - 1;
  }
  if (texts_.size() >= 0xFFFFFFF0) throw Error(Exit::unsupported, "metadata holds too many names");
  texts_.push_back(text.empty() ? std::string_view("") : arena_->store(text));
  slots_[slot] = {tag, static_cast<uint32_t>(texts_.size())};
  if (2 * texts_.size() > slots_.size()) grow();
  return static_cast<uint32_t>(texts_.size() - 1);
}

}  // namespace fsdpctl
