// Strings by number. The names of a big `.metadata` occur five times and more, mostly in the order of their first time, and
// a table of 100,000 of them is far from any cache: so a string is looked up only when somebody asks, many at once.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/arena.h"

namespace fsdpctl {

class NameTable {
 public:
  // `words` get the numbers from 0 on, and each has only this one number. Room for about `expected` names; any number will do.
  explicit NameTable(std::span<const std::string_view> words = {}, uint64_t expected = 0);
  // A number of this string. Strings that are equal may have several: unify() tells. Error(unsupported) beyond 2^32 - 16.
  uint32_t add(std::string_view text);
  // Each number by the one that all equal strings share, the first.
  void unify(std::span<uint32_t> numbers);
  std::string_view text(uint32_t name) const { return texts_[name]; }
  size_t size() const { return texts_.size(); }
  std::vector<std::string_view> take_texts() { return std::move(texts_); }   // ends its use; views into arena()
  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  static constexpr uint32_t kUnknown = 0xFFFFFFFF;
  bool is(uint32_t name, std::string_view text) const;
  bool predict(std::string_view text);
  uint32_t word(std::string_view text) const;
  uint64_t hash(std::string_view text) const;
  uint32_t find_or_insert(uint32_t name, uint64_t hash);
  void grow();

  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  std::vector<std::string_view> texts_;
  std::vector<uint32_t> first_;     // by number: the first equal one, where known
  uint32_t last_ = 0;               // the last string that was there before
  uint32_t round_ = 0;              // where such strings began to come in order
  std::vector<uint32_t> words_;     // open addressing, small
  size_t word_count_ = 0, longest_word_ = 0;
  // Open addressing, at most half full: 8 bits of the hash (0: free), apart from the numbers that few need to see.
  std::vector<uint8_t> tags_;
  std::vector<uint32_t> slots_;
  size_t used_ = 0;
  uint64_t seed_;
};

// Names mostly differ at their end.
inline bool NameTable::is(uint32_t name, std::string_view text) const {
  if (name >= texts_.size() || texts_[name].size() != text.size()) return false;
  const char *a = texts_[name].data(), *b = text.data();
  const size_t n = text.size();
  uint64_t x = 0, y = 0;
  if (n >= sizeof x) {
    std::memcpy(&x, a + n - sizeof x, sizeof x);
    std::memcpy(&y, b + n - sizeof y, sizeof y);
    if (x != y) return false;
  }
  return n == 0 || std::memcmp(a, b, n) == 0;
}

}  // namespace fsdpctl
