// A bump allocator for the names and dims of a catalog: strings and int64 lists by the million
// without a heap block each. Views stay valid for the arena's life; nothing is freed before.
// Not thread-safe while storing; safe to read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace fsdpctl {

// Sizes, offsets or strides of a tensor, in elements. A view: the arena owns the numbers.
using Dims = std::span<const int64_t>;

class Arena {
 public:
  std::string_view store(std::string_view text);
  Dims store(Dims dims);
  std::span<int64_t> dims(size_t count);   // uninitialised room for `count` numbers
  size_t bytes() const { return total_; }

 private:
  std::byte* take(size_t bytes, size_t align);
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
  size_t total_ = 0;
};

}  // namespace fsdpctl
