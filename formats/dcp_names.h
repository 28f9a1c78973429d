// Strings by number, each kept once: the names of a big `.metadata` occur three times and more.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/base/arena.h"

namespace fsdpctl {

class NameTable {
 public:
  // Room for about `expected` names at first; any number will do.
  explicit NameTable(uint64_t expected = 0);
  // The number of this string, a new one if it is new. Error(unsupported) beyond 2^32 - 16 strings.
  uint32_t number(std::string_view text);
  std::string_view text(uint32_t name) const { return texts_[name]; }
  size_t size() const { return texts_.size(); }
  std::vector<std::string_view> take_texts() { return std::move(texts_); }   // ends its use; views into arena()
  const std::shared_ptr<Arena>& arena() const { return arena_; }

 private:
  struct Slot {
    uint32_t tag = 0;               // of the hash
    uint32_t name = 0;              // number + 1; 0: free
  };
  uint32_t hash(std::string_view text) const;
  void grow();

  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  std::vector<std::string_view> texts_;
  std::vector<Slot> slots_;         // open addressing, at most half full
  uint32_t last_known_ = 0;
  uint64_t seed_;
};

}  // namespace fsdpctl
