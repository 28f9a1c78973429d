// The first walk over a pickle: where it ends, and which memo entries it ever fetches.
//
// Picklers memoise nearly every object and fetch few, so that the reader stores only those. The walk also proves that
// every argument lies within the stream, so that the second walk need not check again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/checksum.h"

namespace fsdpctl {

// A set of memo numbers, each with a slot. Low numbers, which classes and field names have, are their own slots.
class FetchedMemo {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  void add(uint64_t id) {
    if (id / 64 >= words_.size()) grow(id / 64 + 1);
    words_[id / 64].bits |= uint64_t{1} << (id % 64);
  }
  void number();                        // after the last add(): slots exist
  size_t slots() const { return slots_; }
  bool has(uint64_t id) const { return id / 64 < words_.size() && (words_[id / 64].bits >> (id % 64) & 1); }
  uint64_t next(uint64_t id) const;     // the first member from `id` on, or kNone
  uint64_t bits(uint64_t id) const {    // of `id` and the 63 numbers behind it: which are members, lowest first
    const uint64_t word = id / 64, shift = id % 64;
    const uint64_t low = word < words_.size() ? words_[word].bits >> shift : 0;
    return shift == 0 || word + 1 >= words_.size() ? low : low | words_[word + 1].bits << (64 - shift);
  }
  size_t slot(uint64_t id) const {      // requires has(id)
    if (id < kLow) return id;
    const Word& word = words_[id / 64];
    return word.before + count_bits(word.bits & ((uint64_t{1} << (id % 64)) - 1));
  }

 private:
  static constexpr uint64_t kLow = 1024;

  // std::popcount calls a library function where the build may not assume the instruction.
  static uint32_t count_bits(uint64_t bits) {
    bits -= bits >> 1 & 0x5555555555555555;
    bits = (bits & 0x3333333333333333) + (bits >> 2 & 0x3333333333333333);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F;
    return static_cast<uint32_t>(bits * 0x0101010101010101 >> 56);
  }
  void grow(size_t words);

  struct Word {
    uint64_t bits = 0;
    uint32_t before = 0;                // slots of earlier words
  };
  std::vector<Word> words_;
  size_t slots_ = 0;
};

struct PickleScan {
  uint64_t consumed = 0;                // bytes up to and including STOP
  int protocol = 0;
  uint64_t opcodes = 0;
  FetchedMemo fetched;
};

// What an error says of a stream that may only be too short: readers that do not know its length try again with more.
inline constexpr const char* kPickleCutShort = "pickle cut short";

// Error(damaged) where the stream is cut short or has an unknown opcode, Error(unsupported) for extension codes and
// out-of-band buffers; with the file and offset.
PickleScan scan_pickle(Bytes stream, const std::string& name, uint64_t base);

// The same of a file of `size` bytes that is read in blocks, and once.
using PickleRead = std::function<void(uint64_t offset, std::span<std::byte> out)>;
PickleScan scan_pickle(const PickleRead& read, uint64_t size, const std::string& name);

}  // namespace fsdpctl
