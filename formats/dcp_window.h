// A file from front to back, in blocks. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fsdpctl {

// Behind the last byte lie kSpare zeros, so that a reader may look at that many bytes first and ask later whether they were there.
class ByteWindow {
 public:
  using Read = std::function<void(uint64_t offset, std::span<std::byte> out)>;
  static constexpr ptrdiff_t kSpare = 2048;
  ByteWindow(Read read, uint64_t size);

  // Where the reader is in memory, and where the bytes at hand end. Both change with need().
  const char* at = nullptr;
  const char* end = nullptr;
  uint64_t size() const { return size_; }
  uint64_t position(const char* p) const { return base_ + static_cast<uint64_t>(p - buffer_.data()); }
  uint64_t left() const { return size_ - position(at); }
  // Makes n bytes contiguous from `at` on. False if the file has fewer.
  bool need(uint64_t n) { return (at <= end && static_cast<uint64_t>(end - at) >= n) || refill(n); }

 private:
  bool refill(uint64_t need);
  Read read_;
  uint64_t size_;
  uint64_t base_ = 0;                // file offset of the buffer
  std::vector<char> buffer_;
};

}  // namespace fsdpctl
