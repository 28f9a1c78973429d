#include "lib/comm/reduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/base/cast.h"

namespace fsdpctl {
namespace {

// Blocks that stay in the first-level cache, and need no alignment of what they are copied from.
constexpr size_t kBlock = 1024;

template <class T>
using Block = std::array<T, kBlock>;

template <class T>
void combine(Block<T>& into, const Block<T>& from, size_t n, Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      for (size_t i = 0; i < n; ++i) into[i] = static_cast<T>(into[i] + from[i]);
      return;
    // A NaN stays, whichever rank it comes from.
    case Reduction::max:
      for (size_t i = 0; i < n; ++i) into[i] = into[i] < from[i] || from[i] != from[i] ? from[i] : into[i];
      return;
    case Reduction::min:
      for (size_t i = 0; i < n; ++i) into[i] = from[i] < into[i] || from[i] != from[i] ? from[i] : into[i];
      return;
    case Reduction::bit_or:
      if constexpr (std::is_integral_v<T>) {
        for (size_t i = 0; i < n; ++i) into[i] = static_cast<T>(into[i] | from[i]);
      }
      return;
  }
}

// Load(part, first, n, block) and store(block, first, n) move between the dtype and T.
template <class T, class Load, class Keep>
void in_blocks(std::span<const void* const> parts, Reduction reduction, uint64_t count, Load load, Keep keep) {
  Block<T> sum, next;
  for (uint64_t first = 0; first < count; first += kBlock) {
    const size_t n = std::min<uint64_t>(kBlock, count - first);
    load(parts[0], first, n, sum);
    for (const void* part : parts.subspan(1)) {
      load(part, first, n, next);
      combine(sum, next, n, reduction);
    }
    keep(sum, first, n);
  }
}

template <class T>
void reduce_plain(std::span<const void* const> parts, Reduction reduction, MutableElements out) {
  in_blocks<T>(
      parts, reduction, out.count,
      [](const void* part, uint64_t first, size_t n, Block<T>& block) {
        std::memcpy(block.data(), static_cast<const std::byte*>(part) + first * sizeof(T), n * sizeof(T));
      },
      [&](const Block<T>& block, uint64_t first, size_t n) {
        std::memcpy(static_cast<std::byte*>(out.data) + first * sizeof(T), block.data(), n * sizeof(T));
      });
}

void reduce_halves(DType in, std::span<const void* const> parts, Reduction reduction, MutableElements out) {
  in_blocks<float>(
      parts, reduction, out.count,
      [in](const void* part, uint64_t first, size_t n, Block<float>& block) {
        const std::span bytes(static_cast<const std::byte*>(part) + first * 2, n * 2);
        cast(in, DType::float32, bytes, std::as_writable_bytes(std::span(block).first(n)));
      },
      [&](const Block<float>& block, uint64_t first, size_t n) {
        const size_t size = item_size(out.dtype);
        const std::span bytes(static_cast<std::byte*>(out.data) + first * size, n * size);
        cast(DType::float32, out.dtype, std::as_bytes(std::span(block).first(n)), bytes);
      });
}

}  // namespace

void reduce_in_rank_order(DType in, std::span<const void* const> parts, Reduction reduction, MutableElements out) {
  switch (in) {
    case DType::float32: return reduce_plain<float>(parts, reduction, out);
    case DType::float64: return reduce_plain<double>(parts, reduction, out);
    case DType::int64: return reduce_plain<int64_t>(parts, reduction, out);
    case DType::int32: return reduce_plain<int32_t>(parts, reduction, out);
    case DType::uint64: return reduce_plain<uint64_t>(parts, reduction, out);
    case DType::uint8: return reduce_plain<uint8_t>(parts, reduction, out);
    default: return reduce_halves(in, parts, reduction, out);
  }
}

}  // namespace fsdpctl
