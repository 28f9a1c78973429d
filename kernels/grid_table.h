// What the GPU's threads share: a table cut into tiles, and access to eight neighbouring elements at once. The grid_*.h
// headers hold the code of one thread; cuda/*.cu launch it, and the tests run it on the CPU.
//
// A grid is any type with block, blocks, thread, threads (indices and sizes), and add(uint64_t* target, uint64_t amount), an
// addition that other threads do too. Blocks take tiles in turn, so the result must not depend on who takes which.
#pragma once

#include "kernels/number.h"

namespace fsdpctl::kernels {

constexpr uint32_t kGroup = 8;         // elements that a thread takes at once: 16 bytes of halves
constexpr uint64_t kTile = 8192;       // elements of one tensor that a block takes at once

// Rows and their tiles; the arrays lie where the grid runs.
template <class Entry>
struct TiledTable {
  const Entry* rows;
  const uint32_t* tile_row;      // per tile
  const uint64_t* first_tile;    // per row
  uint64_t tiles;
};

// The elements [begin, end) of a row that make a tile.
struct Tile {
  uint32_t row;
  uint64_t begin, end;
};

template <class Entry>
FSDPCTL_SHARED Tile tile_at(const TiledTable<Entry>& table, uint64_t index, uint64_t count_of_row) {
  const uint32_t row = table.tile_row[index];
  const uint64_t begin = (index - table.first_tile[row]) * kTile;
  const uint64_t end = begin + kTile < count_of_row ? begin + kTile : count_of_row;
  return {row, begin, end};
}

// ---- groups of elements

#if defined(__CUDACC__)
struct alignas(16) Sixteen { uint32_t word[4]; };
#else
struct __attribute__((aligned(16), may_alias)) Sixteen { uint32_t word[4]; };
#endif

FSDPCTL_SHARED bool aligned16(const void* pointer) { return (reinterpret_cast<uint64_t>(pointer) & 15u) == 0; }

FSDPCTL_SHARED float widen(FloatType type, uint16_t value) {
  return type == FloatType::float16 ? widen_float16(value) : widen_bfloat16(value);
}
FSDPCTL_SHARED uint16_t narrow(FloatType type, float value) {
  return type == FloatType::float16 ? narrow_float16(value) : narrow_bfloat16(value);
}

FSDPCTL_SHARED float load_one(const void* tensor, FloatType type, uint64_t at) {
  if (type == FloatType::float32) return static_cast<const float*>(tensor)[at];
  return widen(type, static_cast<const uint16_t*>(tensor)[at]);
}

FSDPCTL_SHARED void store_one(void* tensor, FloatType type, uint64_t at, float value) {
  if (type == FloatType::float32) {
    static_cast<float*>(tensor)[at] = value;
  } else {
    static_cast<uint16_t*>(tensor)[at] = narrow(type, value);
  }
}

// n <= kGroup elements from `at`; the others of `out` become 0.
FSDPCTL_SHARED void load_group(const void* tensor, FloatType type, uint64_t at, uint32_t n, float (&out)[kGroup]) {
  const auto* bytes = static_cast<const unsigned char*>(tensor) + at * (type == FloatType::float32 ? 4u : 2u);
  if (n < kGroup || !aligned16(bytes)) {
    for (uint32_t i = 0; i < kGroup; ++i) out[i] = i < n ? load_one(tensor, type, at + i) : 0.0f;
  } else if (type == FloatType::float32) {
    const Sixteen a = reinterpret_cast<const Sixteen*>(bytes)[0], b = reinterpret_cast<const Sixteen*>(bytes)[1];
    for (uint32_t i = 0; i < 4; ++i) out[i] = float_of(a.word[i]), out[i + 4] = float_of(b.word[i]);
  } else {
    const Sixteen a = *reinterpret_cast<const Sixteen*>(bytes);
    for (uint32_t i = 0; i < kGroup; ++i) out[i] = widen(type, static_cast<uint16_t>(a.word[i / 2] >> (16 * (i & 1))));
  }
}

FSDPCTL_SHARED void store_group(void* tensor, FloatType type, uint64_t at, uint32_t n, const float (&in)[kGroup]) {
  auto* bytes = static_cast<unsigned char*>(tensor) + at * (type == FloatType::float32 ? 4u : 2u);
  if (n < kGroup || !aligned16(bytes)) {
    for (uint32_t i = 0; i < kGroup; ++i) {
      if (i < n) store_one(tensor, type, at + i, in[i]);
    }
  } else if (type == FloatType::float32) {
    Sixteen a, b;
    for (uint32_t i = 0; i < 4; ++i) a.word[i] = bits_of(in[i]), b.word[i] = bits_of(in[i + 4]);
    reinterpret_cast<Sixteen*>(bytes)[0] = a;
    reinterpret_cast<Sixteen*>(bytes)[1] = b;
  } else {
    Sixteen a;
    for (uint32_t i = 0; i < 4; ++i) {
      a.word[i] = static_cast<uint32_t>(narrow(type, in[2 * i])) | static_cast<uint32_t>(narrow(type, in[2 * i + 1])) << 16;
    }
    *reinterpret_cast<Sixteen*>(bytes) = a;
  }
}

// Calls body(begin, n) for this thread's groups of a tile.
template <class Grid, class Body>
FSDPCTL_SHARED void for_groups(const Grid& grid, const Tile& tile, Body body) {
  for (uint64_t at = tile.begin + uint64_t{grid.thread} * kGroup; at < tile.end; at += uint64_t{grid.threads} * kGroup) {
    const uint64_t left = tile.end - at;
    body(at, left < kGroup ? static_cast<uint32_t>(left) : kGroup);
  }
}

}  // namespace fsdpctl::kernels
