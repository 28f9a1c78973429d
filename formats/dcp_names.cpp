#include "formats/dcp_names.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <random>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

constexpr size_t kWordSlots = 256;
constexpr size_t kFewest = 256;
constexpr size_t kLookAhead = 4;

size_t word_slot(std::string_view text) {
  return (text.size() * 31 + static_cast<uint8_t>(text.front()) * 7 + static_cast<uint8_t>(text.back())) % kWordSlots;
}

uint8_t tag_of(uint64_t hash) { return static_cast<uint8_t>(hash >> 56) | 1; }

}  // namespace

// The seed differs from run to run, so that no file can make its names collide.
NameTable::NameTable(std::span<const std::string_view> words, uint64_t expected)
    : words_(kWordSlots, kUnknown), tags_(2 * std::bit_ceil(std::max<size_t>(kFewest, expected))), slots_(tags_.size()),
      seed_((uint64_t{std::random_device()()} << 32) | std::random_device()()) {
  for (std::string_view text : words) {
    size_t slot = word_slot(text);
    while (words_[slot] != kUnknown) slot = (slot + 1) % kWordSlots;
    words_[slot] = static_cast<uint32_t>(texts_.size());
    first_.push_back(words_[slot]);
    texts_.push_back(text);
    longest_word_ = std::max(longest_word_, text.size());
  }
  word_count_ = words.size();
}

uint32_t NameTable::word(std::string_view text) const {
  if (text.empty() || text.size() > longest_word_) return kUnknown;
  size_t slot = word_slot(text);
  while (words_[slot] != kUnknown && texts_[words_[slot]] != text) slot = (slot + 1) % kWordSlots;
  return words_[slot];
}

// Is it one of those that come next if names come in their old order, some left out or all over again?
bool NameTable::predict(std::string_view text) {
  for (uint32_t ahead = 1; ahead <= kLookAhead; ++ahead) {
    if (!is(last_ + ahead, text)) continue;
    last_ += ahead;
    return true;
  }
  if (!is(round_, text)) return false;
  last_ = round_;
  return true;
}

uint32_t NameTable::add(std::string_view text) {
  if (is(last_ + 1, text)) return first_[++last_] == kUnknown ? last_ : first_[last_];
  if (const uint32_t known = word(text); known != kUnknown) return known;
  if (predict(text)) return first_[last_] == kUnknown ? last_ : first_[last_];
  if (texts_.size() >= 0xFFFFFFF0) throw Error(Exit::unsupported, "metadata holds too many names");
  texts_.push_back(text.empty() ? std::string_view("") : arena_->store(text));
  first_.push_back(kUnknown);
  return static_cast<uint32_t>(texts_.size() - 1);
}

uint64_t NameTable::hash(std::string_view text) const {
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
  return h * 0xD6E8FEB86659FD93u;
}

// Two passes over a few at a time: what the second one needs is on its way then.
void NameTable::unify(std::span<uint32_t> numbers) {
  constexpr size_t kAtOnce = 32;
  std::array<uint64_t, kAtOnce> hashes;
  while (!numbers.empty()) {
    const std::span<uint32_t> some = numbers.first(std::min(kAtOnce, numbers.size()));
    numbers = numbers.subspan(some.size());
    if (2 * (used_ + some.size()) > tags_.size()) grow();
    for (size_t i = 0; i < some.size(); ++i) {
      if (first_[some[i]] != kUnknown) continue;
      hashes[i] = hash(texts_[some[i]]);
      __builtin_prefetch(&tags_[hashes[i] & (tags_.size() - 1)], 1);
      __builtin_prefetch(&slots_[hashes[i] & (tags_.size() - 1)], 1);
    }
    for (size_t i = 0; i < some.size(); ++i) {
      uint32_t& first = first_[some[i]];
      if (first == kUnknown) first = find_or_insert(some[i], hashes[i]);
      if (first < some[i]) {       // it was there before
        if (last_ + 1 != first) round_ = first;
        last_ = first;
      } else if (round_ == 0) {
        round_ = first;
      }
      some[i] = first;
    }
  }
}

uint32_t NameTable::find_or_insert(uint32_t name, uint64_t hash) {
  const size_t mask = tags_.size() - 1;
  size_t slot = hash & mask;
  for (; tags_[slot] != 0; slot = (slot + 1) & mask) {
    if (tags_[slot] == tag_of(hash) && texts_[slots_[slot]] == texts_[name]) return slots_[slot];
  }
  tags_[slot] = tag_of(hash);
  slots_[slot] = name;
  ++used_;
  return name;
}

void NameTable::grow() {
  const size_t slots = 4 * slots_.size();
  slots_.assign(slots, 0);
  tags_.assign(slots, 0);
  used_ = 0;
  for (auto n = static_cast<uint32_t>(word_count_); n < texts_.size(); ++n) {
    if (first_[n] == n) find_or_insert(n, hash(texts_[n]));
  }
}

}  // namespace fsdpctl
