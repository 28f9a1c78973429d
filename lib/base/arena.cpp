#include "lib/base/arena.h"

#include <algorithm>
#include <cstring>

namespace fsdpctl {
namespace {
constexpr size_t kFirstBlock = size_t{64} << 10;
constexpr size_t kLargestBlock = size_t{2} << 20;   // a big page
}

std::byte* Arena::take(size_t bytes, size_t align) {
  const size_t skip = (align - reinterpret_cast<uintptr_t>(next_) % align) % align;
  if (next_ == nullptr || left_ < skip + bytes) {
    const size_t block = std::max(std::clamp(total_, kFirstBlock, kLargestBlock), bytes);   // grow with what is stored
    blocks_.push_back(std::make_unique_for_overwrite<std::byte[]>(block));
    next_ = blocks_.back().get();   // new[] aligns for every fundamental type
    left_ = block;
    total_ += block;
  } else {
    next_ += skip;
    left_ -= skip;
  }
  std::byte* taken = next_;
  next_ += bytes;
  left_ -= bytes;
  return taken;
}

std::string_view Arena::store(std::string_view text) {
  if (text.empty()) return {};
  auto* copy = reinterpret_cast<char*>(take(text.size(), 1));
  std::memcpy(copy, text.data(), text.size());
  return {copy, text.size()};
}

std::span<int64_t> Arena::dims(size_t count) {
  if (count == 0) return {};
  auto* room = reinterpret_cast<int64_t*>(take(count * sizeof(int64_t), alignof(int64_t)));
  return {room, count};
}

Dims Arena::store(Dims dims_in) {
  std::span<int64_t> copy = dims(dims_in.size());
  std::copy(dims_in.begin(), dims_in.end(), copy.begin());
  return copy;
}

}  // namespace fsdpctl
