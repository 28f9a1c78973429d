#include "lib/base/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace fsdpctl {

bool equal(Dims a, Dims b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
bool equal(const Box& a, const Box& b) { return equal(a.offset, b.offset) && equal(a.size, b.size); }

std::string dims_text(Dims dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", dims[i]);
  return text + "]";
}

std::string box_text(const Box& box) {
  if (box.size.empty()) return "[]";
  std::string text;
  for (size_t d = 0; d < box.size.size(); ++d) {
    // As a file claims it: the end may not fit.
    int64_t end = 0;
    if (__builtin_add_overflow(box.offset[d], box.size[d], &end)) end = std::numeric_limits<int64_t>::max();
    text += fmt::format("{}[{}, {})", d ? " x " : "", box.offset[d], end);
  }
  return text;
}

std::optional<uint64_t> checked_count(Dims size) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  uint64_t product = 1;
  bool zero = false;
  for (int64_t n : size) {
    if (n < 0) return std::nullopt;
    if (n == 0) {
      zero = true;   // the other sizes must still be sane
      continue;
    }
    if (product > kMax / static_cast<uint64_t>(n)) return std::nullopt;
    product *= static_cast<uint64_t>(n);
  }
  return zero ? 0 : product;
}

uint64_t count(Dims size) {
  uint64_t product = 1;
  for (int64_t n : size) product *= static_cast<uint64_t>(n);
  return product;
}

bool is_empty(const Box& box) { return std::find(box.size.begin(), box.size.end(), 0) != box.size.end(); }

bool contains(Dims shape, const Box& box) {
  if (box.offset.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d]) return false;
    if (box.size[d] > shape[d] - box.offset[d]) return false;
  }
  return true;
}

bool overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.size.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    if (begin >= end) return false;
  }
  return true;
}

Box whole_box(Arena& arena, Dims shape) {
  std::span<int64_t> zeros = arena.dims(shape.size());
  std::fill(zeros.begin(), zeros.end(), 0);
  return {zeros, shape};
}

bool intersect(const Box& a, const Box& b, std::span<int64_t> offset, std::span<int64_t> size) {
  for (size_t d = 0; d < a.size.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    if (begin >= end) return false;
    offset[d] = begin;
    size[d] = end - begin;
  }
  return true;
}

void row_major_strides(Dims shape, std::span<int64_t> strides) {
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
}

std::optional<uint64_t> flat_start(Dims shape, const Box& box) {
  if (is_empty(box)) return std::nullopt;
  // Leading dims of size 1, then one free dim, then whole dims.
  size_t d = 0;
  while (d < shape.size() && box.size[d] == 1) ++d;
  for (size_t e = d + 1; e < shape.size(); ++e) {
    if (box.size[e] != shape[e]) return std::nullopt;
  }
  uint64_t start = 0;
  for (size_t e = 0; e < shape.size(); ++e) {
    start = start * static_cast<uint64_t>(shape[e]) + static_cast<uint64_t>(box.offset[e]);
  }
  return start;
}

namespace {

// Appends the boxes of [begin, end) within the sub-tensor of dims [d, end), whose outer indices are
// fixed in `outer`. Head and tail rows recurse, the middle is one box.
void cut(Arena& arena, Dims shape, size_t d, std::vector<int64_t>& outer, uint64_t begin, uint64_t end,
         std::vector<Box>& out) {
  if (begin >= end) return;
  auto emit = [&](int64_t first, int64_t rows) {
    std::span<int64_t> offset = arena.dims(shape.size());
    std::span<int64_t> size = arena.dims(shape.size());
    for (size_t e = 0; e < shape.size(); ++e) {
      offset[e] = e < d ? outer[e] : e == d ? first : 0;
      size[e] = e < d ? 1 : e == d ? rows : shape[e];
    }
    out.push_back({offset, size});
  };
  if (d + 1 >= shape.size()) {
    emit(static_cast<int64_t>(begin), static_cast<int64_t>(end - begin));
    return;
  }
  const uint64_t row = count(shape.subspan(d + 1));
  uint64_t first = begin / row;
  const uint64_t last = end / row;   // exclusive: the row that `end` cuts, or lies before
  auto inner = [&](uint64_t index, uint64_t from, uint64_t to) {
    outer.push_back(static_cast<int64_t>(index));
    cut(arena, shape, d + 1, outer, from, to, out);
    outer.pop_back();
  };
  if (begin % row != 0) {
    inner(first, begin % row, std::min(row, end - first * row));
    ++first;
  }
  if (first < last) emit(static_cast<int64_t>(first), static_cast<int64_t>(last - first));
  if (last >= first && end % row != 0) inner(last, 0, end % row);
}

}  // namespace

std::vector<Box> flat_range_boxes(Arena& arena, Dims shape, uint64_t begin, uint64_t end) {
  std::vector<Box> boxes;
  if (begin >= end) return boxes;
  if (shape.empty()) {
    boxes.push_back({});
    return boxes;
  }
  std::vector<int64_t> outer;
  cut(arena, shape, 0, outer, begin, end, boxes);
  return boxes;
}

std::pair<int64_t, int64_t> chunk_extent(int64_t n, int64_t world_size, int64_t rank) {
  const int64_t each = (n + world_size - 1) / world_size;
  // each * rank cannot overflow in a checked catalog, but saturate: ranks may exceed n.
  const int64_t begin = each == 0 || rank > n / each ? n : std::min(n, each * rank);
  return {begin, std::min(each, n - begin)};
}

}  // namespace fsdpctl
