// Boxes: half-open N-dimensional regions of a row-major tensor. Everything that fsdpctl moves is one.
//
// All quantities are in elements. Boxes are views on dims that an Arena (or the caller) owns; copying
// one is cheap and it must not outlive that owner. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/arena.h"

namespace fsdpctl {

struct Box {
  Dims offset;
  Dims size;
};

bool equal(Dims a, Dims b);
bool equal(const Box& a, const Box& b);
std::string dims_text(Dims dims);   // "[2, 3]"
std::string box_text(const Box& box);  // "[0, 2) x [4, 8)"; "[]" for 0-d

// Product of the sizes; nullopt where it does not fit 63 bits or a size is negative. 1 for 0-d.
std::optional<uint64_t> checked_count(Dims size);
// The same for sizes that were checked when the catalog was built.
uint64_t count(Dims size);
inline uint64_t count(const Box& box) { return count(box.size); }

bool is_empty(const Box& box);                  // some size is 0
bool contains(Dims shape, const Box& box);      // box lies inside a tensor of this shape
bool overlap(const Box& a, const Box& b);       // share at least one element

// The whole tensor as a box. `zeros` must have at least shape.size() zeros and outlive the box; use
// whole_box(arena, shape) where there is none at hand.
Box whole_box(Arena& arena, Dims shape);

// Writes the intersection into offset/size (length = dims of a). False when it is empty.
bool intersect(const Box& a, const Box& b, std::span<int64_t> offset, std::span<int64_t> size);

// Row-major strides of a shape, in elements.
void row_major_strides(Dims shape, std::span<int64_t> strides);

// If the box's elements are one run of the row-major tensor `shape`, the first one's flat index.
// (0-d, whole tensors, row shards: yes. Column shards: no.) Empty boxes: no.
std::optional<uint64_t> flat_start(Dims shape, const Box& box);

// Elements [begin, end) of the row-major order of `shape` as at most 2*dims-1 boxes, in that order.
// This is how a flat shard (FSDP1, ZeRO) becomes boxes. Dims are stored in `arena`.
std::vector<Box> flat_range_boxes(Arena& arena, Dims shape, uint64_t begin, uint64_t end);

// Piece `rank` of `world_size` along one dimension of extent n as torch.chunk cuts it: ceil(n/W)
// each, the last pieces short or empty. Returns (offset, size); an empty piece has offset n.
std::pair<int64_t, int64_t> chunk_extent(int64_t n, int64_t world_size, int64_t rank);

}  // namespace fsdpctl
