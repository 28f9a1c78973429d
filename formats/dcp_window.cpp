#include "formats/dcp_window.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fsdpctl {
namespace {
constexpr size_t kWindow = size_t{1} << 18;
}

ByteWindow::ByteWindow(Read read, uint64_t size)
    : read_(std::move(read)), size_(size), buffer_(std::min<uint64_t>(kWindow, size) + kSpare) {
  at = end = buffer_.data();
}

// Moves what is left to the front and reads on.
bool ByteWindow::refill(uint64_t need) {
  const uint64_t begin = position(at);
  if (at > end || need > size_ - begin) return false;
  const auto kept = static_cast<size_t>(end - at);
  if (need > buffer_.size() - kSpare) {
    std::vector<char> bigger(need + kSpare);
    std::memcpy(bigger.data(), at, kept);
    buffer_ = std::move(bigger);
  } else {
    std::memmove(buffer_.data(), at, kept);
  }
  const uint64_t more = std::min<uint64_t>(buffer_.size() - kSpare - kept, size_ - begin - kept);
  read_(begin + kept, std::as_writable_bytes(std::span(buffer_.data() + kept, more)));
  base_ = begin;
  at = buffer_.data();
  end = at + kept + more;
  std::fill_n(buffer_.data() + kept + more, kSpare, '\0');
  return true;
}

}  // namespace fsdpctl
