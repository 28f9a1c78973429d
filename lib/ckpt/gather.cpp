#include "lib/ckpt/gather.h"

#include <algorithm>
#include <array>
#include <utility>

#include "lib/base/checksum.h"
#include "lib/base/element_ops.h"
#include "lib/ckpt/piece_copy.h"
#include "lib/ckpt/region_walk.h"
#include "lib/ckpt/running_crc.h"
#include "lib/ckpt/source_reader.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kStage = 256 << 10;   // of what is staged, and of what is cast: fits the second-level cache
// Shorter runs are summed in the gathered block, where they may be longer.
constexpr uint64_t kShortRun = 512;

using Numbers = std::array<int64_t, kMaxAxes>;

// Calls visit(run) for each contiguous run of a walk in the target.
template <class Visit>
void for_each_run(std::byte* target, std::span<const Axis> axes, size_t run, const Visit& visit) {
  if (axes.empty()) return visit(std::span(target, run));
  for (int64_t i = 0; i < axes.back().count; ++i) {
    for_each_run(target + i * axes.back().target, axes.first(axes.size() - 1), run, visit);
  }
}

void transform(const Piece& piece, const Walk& walk, std::byte* target) {
  std::span<const Axis> axes = walk.used();
  size_t run = walk.item;
  if (!axes.empty() && axes[0].target == walk.item) {
    run *= static_cast<size_t>(axes[0].count);
    axes = axes.subspan(1);
  }
  for_each_run(target, axes, run, [&piece](std::span<std::byte> elements) {
    if (piece.swap) swap_bytes(piece.stored, elements);
    if (piece.conj) conjugate(piece.stored, elements);
    if (piece.neg) negate(piece.stored, elements);
  });
}

}  // namespace

struct Gatherer::Impl {
  // One call of read().
  struct Call {
    TensorIndex t;
    const TensorInfo& info;
    const Box& region;
    GatherWants wants;
    DType stored;
    uint32_t item;              // bytes of a stored element
    RunningCrc64 crc64;         // of the stored elements
    uint32_t crc32 = 0;         // of the first crc32_bytes of the output; then known to be what was read
    uint64_t crc32_bytes = 0;
  };

  Impl(GatherContext& shared, std::unique_ptr<GatherContext> owned, uint64_t memory, const std::atomic<bool>* cancel)
      : own_context(std::move(owned)),
        context(shared),
        reader(*shared.checkpoint.source, std::max(memory, kLeastMemory) - 2 * kStage),
        copier(reader, kStage, cancel) {}

  GatherResult read(TensorIndex t, const Box& region, uint64_t begin, uint64_t end, std::span<std::byte> out,
                    GatherWants wants);
  void cast_range(Call& call, uint64_t begin, uint64_t end, std::span<std::byte> out, GatherResult& result);
  void copy_range(Call& call, uint64_t begin, uint64_t end, std::span<std::byte> out);
  void copy_box(Call& call, const Box& box, std::byte* target, uint64_t position);
  bool copy_piece(Call& call, const Piece& piece, const Box& part, const Box& box, std::byte* target, uint64_t position);
  Walk piece_walk(const Call& call, const Piece& piece, const Box& part, const Box& box, uint64_t& target) const;
  void check_range(const Call& call, const Piece& piece, const Walk& walk, uint32_t crc);
  void check_whole(const Piece& piece);
  PieceIndex index_of(const Piece& piece) const {
    return static_cast<PieceIndex>(&piece - context.checkpoint.pieces.data());
  }

  std::unique_ptr<GatherContext> own_context;   // of a gatherer that shares with none
  GatherContext& context;
  SourceReader reader;
  PieceCopier copier;
  std::vector<std::byte> uncast;       // stored elements on their way to a cast
  std::vector<PieceRange> ranges;
};

GatherResult Gatherer::Impl::read(TensorIndex t, const Box& region, uint64_t begin, uint64_t end,
                                  std::span<std::byte> out, GatherWants wants) {
  GatherResult result;
  if (begin == end) return result;
  const TensorInfo& info = context.checkpoint.tensors[t];
  const std::span<const Piece> pieces = context.checkpoint.pieces_of(t);
  if (info.shape.size() > kMaxAxes) throw Error(Exit::unsupported, "tensor has too many dimensions");
  const DType stored = pieces.empty() ? info.dtype : pieces.front().stored;
  const uint32_t item = item_size(stored), out_item = item_size(info.dtype);
  Call call = {t, info, region, wants, stored, item, RunningCrc64(count(info.shape) * item)};
  if (stored == info.dtype) {
    copy_range(call, begin / item, end / item, out);
  } else if (can_cast(stored, info.dtype)) {
    cast_range(call, begin / out_item, end / out_item, out, result);
  } else {
    throw Error(Exit::unsupported, "no conversion between these dtypes")
        .saw(std::string(dtype_name(info.dtype)), std::string(dtype_name(stored)));
  }
  if (wants.sums) result.source_crc64 = call.crc64.contribution();
  if (wants.sums && stored == info.dtype) result.crc64 = result.source_crc64;
  if (wants.crc32) result.crc32 = call.crc32_bytes == out.size() ? call.crc32 : crc32(out);
  return result;
}

// Elements [begin, end) of the region, cast in parts that stay in the cache.
void Gatherer::Impl::cast_range(Call& call, uint64_t begin, uint64_t end, std::span<std::byte> out,
                                GatherResult& result) {
  const uint32_t out_item = item_size(call.info.dtype);
  const uint64_t part = kStage / std::max(call.item, out_item);
  uncast.resize(kStage);
  call.wants.crc32 = false;   // of the stored elements, it is of no use
  RunningCrc64 crc(count(call.info.shape) * out_item);
  for (uint64_t done = begin; done < end; done += part) {
    const uint64_t n = std::min(part, end - done);
    const std::span<std::byte> from = std::span(uncast).first(n * call.item);
    const std::span<std::byte> to = out.subspan((done - begin) * out_item, n * out_item);
    copy_range(call, done, done + n, from);
    result.casts += cast(call.stored, call.info.dtype, from, to);
    if (call.wants.sums) add_elements(crc, to.data(), call.region, call.info.shape, out_item, done, done + n);
  }
  result.crc64 = crc.contribution();
}

// Elements [begin, end) of the region's row-major order, as stored.
void Gatherer::Impl::copy_range(Call& call, uint64_t begin, uint64_t end, std::span<std::byte> out) {
  if (begin == 0 && end == count(call.region)) return copy_box(call, call.region, out.data(), 0);
  Arena arena;
  Numbers offset;
  uint64_t done = 0;
  for (const Box& box : flat_range_boxes(arena, call.region.size, begin, end)) {
    for (size_t d = 0; d < box.offset.size(); ++d) offset[d] = call.region.offset[d] + box.offset[d];
    copy_box(call, {std::span(offset).first(box.offset.size()), box.size}, out.data() + done, done);
    done += count(box) * call.item;
  }
}

// `position`: where the box begins in the output of the call.
void Gatherer::Impl::copy_box(Call& call, const Box& box, std::byte* target, uint64_t position) {
  const RunningCrc64 before = call.crc64;
  Numbers offset, size;
  const size_t dims = box.size.size();
  const Box part = {std::span(offset).first(dims), std::span(size).first(dims)};
  uint64_t covered = 0;
  bool summed = true;   // every part's runs were long enough to be summed as they were read
  const Piece* last = nullptr;
  for (const Piece& piece : context.finder.near(call.t, box)) {
    if (is_empty(piece.box) || (last != nullptr && equal(piece.box, last->box))) continue;   // a replica
    last = &piece;
    if (!intersect(piece.box, box, std::span(offset).first(dims), std::span(size).first(dims))) continue;
    covered += count(part);
    if (covered > count(box)) break;
    summed &= copy_piece(call, piece, part, box, target, position);
  }
  if (covered != count(box)) {
    throw Error(Exit::damaged, covered < count(box) ? "tensor has a hole" : "pieces of a tensor overlap")
        .saw(std::to_string(count(box)) + " elements in " + box_text(box), std::to_string(covered));
  }
  if (call.wants.sums && !summed) {
    call.crc64 = before;
    const Walk walk = walk_of(box, call.info.shape, call.item);
    add_runs(call.crc64, target, walk.used(), call.item, walk.logical);
  }
}

// `target` becomes the distance of the part's first element from the box's.
Walk Gatherer::Impl::piece_walk(const Call& call, const Piece& piece, const Box& part, const Box& box,
                                uint64_t& target) const {
  Walk walk;
  walk.file = piece.source;
  walk.item = call.item;
  int64_t on_disk = call.item, near = call.item, far = call.item;   // distances if everything is row-major
  int64_t source_at = 0, target_at = 0, logical_at = 0;
  for (size_t d = part.size.size(); d-- > 0;) {
    const int64_t inside = part.offset[d] - piece.box.offset[d];
    int64_t source = on_disk;
    if (!piece.strides.empty()) {
      if (piece.strides[d] < 0) throw Error(Exit::unsupported, "tensor with negative strides");
      source = piece.box.size[d] > 1 ? piece.strides[d] * call.item : 0;
    }
    walk.push({part.size[d], source, near, far});
    source_at += inside * source;
    target_at += (part.offset[d] - box.offset[d]) * near;
    logical_at += part.offset[d] * far;
    on_disk *= piece.box.size[d];
    near *= box.size[d];
    far *= call.info.shape[d];
  }
  walk.offset = piece.offset + static_cast<uint64_t>(source_at);
  walk.logical = static_cast<uint64_t>(logical_at);
  target = static_cast<uint64_t>(target_at);
  return walk;
}

// True if the part was summed as it was read.
bool Gatherer::Impl::copy_piece(Call& call, const Piece& piece, const Box& part, const Box& box, std::byte* target,
                                uint64_t position) {
  if (piece.encoding != Encoding::raw || piece.stored != call.stored) {
    throw Error(Exit::damaged, "piece could not be decoded").at(context.checkpoint.source->file(piece.source).name);
  }
  uint64_t distance = 0;
  const Walk walk = piece_walk(call, piece, part, box, distance);
  const uint64_t bytes = walk.bytes();
  const bool transformed = piece.swap || piece.conj || piece.neg;
  const bool sequential = walk.contiguous(&Axis::source);
  const bool copied = sequential && walk.contiguous(&Axis::target) && !transformed;   // output is as on disk
  const bool long_runs = walk.run() >= kShortRun || (copied && bytes == count(box) * call.item);
  const bool continues = copied && position + distance == call.crc32_bytes;   // what is known of the output's CRC-32
  const bool check = call.wants.sums && piece.has_crc32 && sequential;

  CopySums sums;
  if (call.wants.sums && long_runs && !transformed) sums.crc64 = &call.crc64;
  sums.want_crc32 = check || (call.wants.crc32 && continues);
  copier.copy(walk, target + distance, sums);
  if (transformed) transform(piece, walk, target + distance);
  if (call.wants.crc32 && continues) {
    call.crc32 = call.crc32_bytes == 0 ? sums.crc32 : crc32_combine(call.crc32, sums.crc32, bytes);
    call.crc32_bytes += bytes;
  }
  if (check) {
    check_range(call, piece, walk, sums.crc32);
  } else if (call.wants.sums && piece.has_crc32) {
    check_whole(piece);
  }
  return sums.crc64 != nullptr || !call.wants.sums;
}

void Gatherer::Impl::check_range(const Call& call, const Piece& piece, const Walk& walk, uint32_t crc) {
  const PieceRange range = {index_of(piece), walk.offset - piece.offset, walk.bytes(), crc};
  if (piece.length != count(piece.box) * call.item) return check_whole(piece);
  if (range.length == piece.length) return context.crcs.compare(range.piece, crc);
  if (!context.crcs.add(range)) return check_whole(piece);
  ranges.push_back(range);
}

// Once for each piece, whoever comes first.
void Gatherer::Impl::check_whole(const Piece& piece) {
  const PieceIndex index = index_of(piece);
  if (!context.crcs.claim(index)) return;
  context.crcs.compare(index, copier.crc32_of(piece.source, piece.offset, piece.length));
}

Gatherer::Gatherer(GatherContext& context, uint64_t memory, const std::atomic<bool>* cancel)
    : impl_(std::make_unique<Impl>(context, nullptr, memory, cancel)) {}

Gatherer::Gatherer(const Checkpoint& checkpoint, uint64_t memory, const std::atomic<bool>* cancel) {
  auto context = std::make_unique<GatherContext>(checkpoint);
  GatherContext& shared = *context;
  impl_ = std::make_unique<Impl>(shared, std::move(context), memory, cancel);
}

Gatherer::~Gatherer() = default;

GatherResult Gatherer::read(TensorIndex t, const Box& region, uint64_t begin, uint64_t end, std::span<std::byte> out,
                            GatherWants wants) {
  try {
    return impl_->read(t, region, begin, end, out, wants);
  } catch (Error& error) {
    error.in_tensor(impl_->context.checkpoint.tensors[t].key);
    throw;
  }
}

std::vector<PieceRange> Gatherer::take_ranges() { return std::exchange(impl_->ranges, {}); }
uint64_t Gatherer::bytes_read() const { return impl_->reader.bytes_read(); }

}  // namespace fsdpctl
