#include "lib/ckpt/held_ranges.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lib/ckpt/block_filler.h"
#include "lib/ckpt/piece_finder.h"
#include "lib/ckpt/strided_copy.h"

namespace fsdpctl {
namespace {

using Run = std::pair<uint64_t, uint64_t>;   // elements [first, second) of a box's row-major order
using Numbers = std::array<int64_t, kMaxAxes>;

// The elements of `part`, which lies in `box`, as runs.
void add_runs_of(const Box& part, const Box& box, std::vector<Run>& runs) {
  size_t outer = box.size.size();   // dimensions that are walked: those before the first one that is cut
  uint64_t run = 1, stride = 1;
  while (outer > 0) {
    --outer;
    run *= static_cast<uint64_t>(part.size[outer]);
    stride *= static_cast<uint64_t>(box.size[outer]);
    if (part.size[outer] != box.size[outer]) break;
  }
  uint64_t first = 0, steps = 1, unit = 1;
  for (size_t d = box.size.size(); d-- > 0;) {
    first += static_cast<uint64_t>(part.offset[d] - box.offset[d]) * unit;
    unit *= static_cast<uint64_t>(box.size[d]);
  }
  for (size_t d = 0; d < outer; ++d) steps *= static_cast<uint64_t>(part.size[d]);
  for (uint64_t step = 0; step < steps; ++step) {
    uint64_t rest = step, at = first, distance = stride;
    for (size_t d = outer; d-- > 0;) {
      const auto n = static_cast<uint64_t>(part.size[d]);
      at += rest % n * distance;
      rest /= n;
      distance *= static_cast<uint64_t>(box.size[d]);
    }
    runs.emplace_back(at, at + run);
  }
}

class Collector {
 public:
  Collector(const Checkpoint& checkpoint, int rank) : checkpoint_(checkpoint), finder_(checkpoint), rank_(rank) {}

  void add_tensor(size_t file, const Segment& segment) {
    runs_.clear();
    Numbers offset, size;
    const size_t dims = segment.box.size.size();
    const Box part = {std::span(offset).first(dims), std::span(size).first(dims)};
    const Piece* last = nullptr;
    for (const Piece& piece : finder_.near(segment.tensor, segment.box)) {
      if (is_empty(piece.box) || (last != nullptr && equal(piece.box, last->box))) continue;   // a replica of a higher rank
      last = &piece;
      if (std::max(piece.rank, 0) != rank_) continue;
      if (!intersect(piece.box, segment.box, std::span(offset).first(dims), std::span(size).first(dims))) continue;
      add_runs_of(part, segment.box, runs_);
    }
    std::sort(runs_.begin(), runs_.end());
    const uint64_t item = item_size(checkpoint_.tensors[segment.tensor].dtype);
    for (const Run& run : runs_) add({file, segment.offset + run.first * item, segment.offset + run.second * item});
  }

  void add(const FileRange& range) {
    if (range.begin == range.end) return;
    if (!ranges_.empty() && ranges_.back().file == range.file && ranges_.back().end == range.begin) {
      ranges_.back().end = range.end;
    } else {
      ranges_.push_back(range);
    }
  }

  std::vector<FileRange> take() { return std::move(ranges_); }

 private:
  const Checkpoint& checkpoint_;
  const PieceFinder finder_;
  const int rank_;
  std::vector<Run> runs_;
  std::vector<FileRange> ranges_;
};

}  // namespace

bool is_own_file(const FileLayout& file, int rank, int ranks) { return file.rank() % ranks == rank; }

std::vector<FileRange> held_ranges(const Checkpoint& checkpoint, const FilePlan& plan, int rank, int ranks) {
  Collector collector(checkpoint, rank);
  SegmentList list;
  for (size_t file = 0; file < plan.size(); ++file) {
    const bool own = is_own_file(*plan[file], rank, ranks);
    for (uint64_t item = 0; item < plan[file]->item_count(); ++item) {
      segments_of(*plan[file], item, list);
      for (const Segment& segment : list.segments) {
        if (segment.kind == Segment::Kind::tensor) collector.add_tensor(file, segment);
        else if (own) collector.add({file, segment.offset, segment.offset + segment.length});
      }
    }
  }
  return collector.take();
}

void for_each_stretch(const FilePlan& plan, const FileRange& range, const std::function<void(const TensorStretch&)>& visit) {
  const FileLayout& layout = *plan[range.file];
  SegmentList list;
  for (uint64_t item = item_at(layout, range.begin); item < layout.item_count() && layout.item_offset(item) < range.end; ++item) {
    segments_of(layout, item, list);
    const Segment* segment = tensor_segment(list);
    if (segment == nullptr) continue;
    const uint64_t begin = std::max(segment->offset, range.begin), end = std::min(segment->offset + segment->length, range.end);
    if (begin < end) visit({segment->tensor, segment->box, begin - segment->offset, end - segment->offset});
  }
}

}  // namespace fsdpctl
