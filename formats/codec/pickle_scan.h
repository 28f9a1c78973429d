// The first walk over a pickle: where it ends, and which memo entries it ever fetches.
//
// Picklers memoise nearly every object and fetch few, so that the reader stores only those. The walk also proves that
// every argument lies within the stream, so that the second walk need not check again.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/checksum.h"

namespace fsdpctl {

// A set of memo numbers, each with a dense slot.
class FetchedMemo {
 public:
  void add(uint64_t id);
  void number();                        // after the last add(): slots exist
  uint32_t slots() const { return slots_; }
  bool has(uint64_t id) const { return id / 64 < words_.size() && (words_[id / 64].bits >> (id % 64) & 1); }
  uint32_t slot(uint64_t id) const {    // requires has(id)
    const Word& word = words_[id / 64];
    return word.before + static_cast<uint32_t>(std::popcount(word.bits & ((uint64_t{1} << (id % 64)) - 1)));
  }

 private:
  struct Word {
    uint64_t bits = 0;
    uint32_t before = 0;                // members in earlier words
  };
  std::vector<Word> words_;
  uint32_t slots_ = 0;
};

struct PickleScan {
  size_t consumed = 0;                  // bytes up to and including STOP
  int protocol = 0;
  uint64_t opcodes = 0;
  FetchedMemo fetched;
};

// What an error says of a stream that may only be too short: readers that do not know its length try again with more.
inline constexpr const char* kPickleCutShort = "pickle cut short";

// Error(damaged) where the stream is cut short or has an unknown opcode, Error(unsupported) for extension codes and
// out-of-band buffers; with the file and offset.
PickleScan scan_pickle(Bytes stream, const std::string& name, uint64_t base);

}  // namespace fsdpctl
