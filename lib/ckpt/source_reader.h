// SourceReader: one thread's view of a Source. Small requests are served from read-ahead windows, so that a hundred
// thousand tiny tensors need few system calls; large ones go straight into the caller's memory. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/ckpt/source.h"

namespace fsdpctl {

class SourceReader {
 public:
  static constexpr uint64_t kSmall = 32 << 10;   // the largest request that windows serve

  // `memory`: bytes for all windows together; taken on first use.
  SourceReader(const Source& source, uint64_t memory);

  // Exactly out.size() bytes. Errors as Source::read, and for the next call too.
  void read(SourceIndex file, uint64_t offset, std::span<std::byte> out);
  // The same for length <= kSmall, without a copy: valid until the next call of view().
  const std::byte* view(SourceIndex file, uint64_t offset, uint64_t length);

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Window {
    SourceIndex file = 0;
    uint64_t begin = 0, end = 0;    // what it holds
    uint64_t ahead = 0;             // bytes to read next time: grows while reads go on where the last one ended
    uint64_t used = 0;              // clock of its last use
    std::byte* memory = nullptr;
  };
  Window& window_for(SourceIndex file, uint64_t offset);

  const Source& source_;
  uint64_t capacity_ = 0;           // of one window
  std::unique_ptr<std::byte[]> memory_;
  std::vector<Window> windows_;
  size_t latest_ = 0;
  uint64_t clock_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace fsdpctl
