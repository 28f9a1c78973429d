#include "lib/ckpt/piece_copy.h"

#include <algorithm>
#include <cstring>

namespace fsdpctl {
namespace {

// Bytes that cost about as much to read in vain as another system call.
constexpr int64_t kGap = 8 << 10;
// Runs of this size are read in place rather than staged and copied.
constexpr uint64_t kLargeRun = 64 << 10;

int64_t signed_bytes(uint64_t bytes) { return static_cast<int64_t>(bytes); }
int64_t padded(uint64_t bytes) { return signed_bytes((bytes + 63) & ~uint64_t{63}); }

// Repeated elements (distance 0) come last: then everything below is read once and repeated.
bool nearer_on_disk(const Axis& a, const Axis& b) {
  return static_cast<uint64_t>(a.source) - 1 < static_cast<uint64_t>(b.source) - 1;
}

}  // namespace

void Walk::push(const Axis& axis) {
  if (axis.count == 1) return;
  if (rank > 0) {
    Axis& last = axes[rank - 1];
    if (axis.source == last.source * last.count && axis.target == last.target * last.count &&
        axis.logical == last.logical * last.count) {
      last.count *= axis.count;
      return;
    }
  }
  axes[rank++] = axis;
}

uint64_t Walk::bytes() const {
  uint64_t bytes = item;
  for (const Axis& axis : used()) bytes *= static_cast<uint64_t>(axis.count);
  return bytes;
}

uint64_t Walk::run() const {
  const bool joined = rank > 0 && axes[0].source == item && axes[0].logical == item;
  return joined ? item * static_cast<uint64_t>(axes[0].count) : item;
}

bool Walk::contiguous(int64_t Axis::* where) const {
  int64_t next = item;
  for (const Axis& axis : used()) {
    if (axis.*where != next) return false;
    next *= axis.count;
  }
  return true;
}

PieceCopier::PieceCopier(SourceReader& reader, uint64_t stage, const std::atomic<bool>* cancel)
    : reader_(reader), cancel_(cancel), stage_size_(stage), stage_(std::make_unique_for_overwrite<std::byte[]>(stage)) {}

void PieceCopier::copy(const Walk& walk, std::byte* target, CopySums& sums) {
  file_ = walk.file;
  item_ = walk.item;
  sums_ = &sums;
  std::copy_n(walk.axes.begin(), walk.rank, axes_.begin());
  std::sort(axes_.begin(), axes_.begin() + signed_bytes(walk.rank), nearer_on_disk);
  extent_[0] = item_;
  dense_[0] = same_[0] = true;
  for (size_t k = 0; k < walk.rank; ++k) {
    const Axis& axis = axes_[k];
    extent_[k + 1] = extent_[k] + static_cast<uint64_t>(axis.source * (axis.count - 1));
    dense_[k + 1] = dense_[k] && axis.source - signed_bytes(extent_[k]) <= kGap;
    same_[k + 1] = same_[k] && axis.source == axis.target && axis.source == signed_bytes(extent_[k]);
  }
  large_runs_ = walk.rank > 0 && same_[1] && extent_[1] >= kLargeRun;
  descend(walk.rank, {walk.offset, target, walk.logical});
}

PieceCopier::Place PieceCopier::step(const Place& place, const Axis& axis, int64_t i) const {
  return {place.offset + static_cast<uint64_t>(i * axis.source), place.target + i * axis.target,
          place.logical + static_cast<uint64_t>(i * axis.logical)};
}

void PieceCopier::descend(size_t k, const Place& place) {
  if (k == 0 || (k == 1 && same_[1])) return copy_run(place, extent_[k]);
  const Axis& axis = axes_[k - 1];
  const uint64_t inner = extent_[k - 1];
  const bool in_place = large_runs_ && !same_[k];
  if (in_place || inner > stage_size_ || !dense_[k - 1]) {
    for (int64_t i = 0; i < axis.count; ++i) descend(k - 1, step(place, axis, i));
    return;
  }
  const bool whole_span = dense_[k];
  const int64_t distance = whole_span ? axis.source : padded(inner);
  const int64_t rows = distance == 0 ? axis.count : 1 + signed_bytes(stage_size_ - inner) / distance;
  for (int64_t i = 0; i < axis.count; i += rows) {
    const int64_t n = std::min(rows, axis.count - i);
    if (whole_span) {
      copy_span(k, n, step(place, axis, i));
    } else {
      copy_rows(k, n, step(place, axis, i));
    }
  }
}

// Read straight to its place, in parts that are still in the cache when they are summed.
void PieceCopier::copy_run(const Place& place, uint64_t bytes) {
  const Axis axis = {signed_bytes(bytes / item_), item_, item_, item_};
  const uint64_t part = std::max<uint64_t>(stage_size_ / item_ * item_, item_);
  for (uint64_t done = 0; done < bytes; done += part) {
    check_cancel();
    const uint64_t n = std::min(part, bytes - done);
    const Place at = step(place, axis, signed_bytes(done / item_));
    if (n <= SourceReader::kSmall) {
      std::memcpy(at.target, reader_.view(file_, at.offset, n), n);
    } else {
      reader_.read(file_, at.offset, {at.target, n});
    }
    const Axis whole = {signed_bytes(n / item_), item_, item_, axes_[0].logical};
    add_sums(at.target, n, {&whole, n == item_ ? size_t{0} : size_t{1}}, at);
  }
}

// The innermost k axes, of the last one `rows` steps, by one read from the first to the last byte.
void PieceCopier::copy_span(size_t k, int64_t rows, const Place& place) {
  check_cancel();
  std::array<Axis, kMaxAxes> axes;
  std::copy_n(axes_.begin(), k, axes.begin());
  axes[k - 1].count = rows;
  const std::span<const Axis> used = std::span(axes).first(k);
  const uint64_t bytes = extent_[k - 1] + static_cast<uint64_t>(axes[k - 1].source * (rows - 1));
  const std::byte* memory = place.target;
  if (bytes <= SourceReader::kSmall) {
    memory = reader_.view(file_, place.offset, bytes);
    if (same_[k]) std::memcpy(place.target, memory, bytes);
  } else {
    if (!same_[k]) memory = stage_.get();
    reader_.read(file_, place.offset, {same_[k] ? place.target : stage_.get(), bytes});
  }
  if (!same_[k]) strided_copy(place.target, memory, used, item_);
  add_sums(memory, bytes, used, place);
}

// The same, but each step by a read of its own: the gaps between them are wide.
void PieceCopier::copy_rows(size_t k, int64_t rows, const Place& place) {
  check_cancel();
  std::array<Axis, kMaxAxes> axes;
  std::copy_n(axes_.begin(), k, axes.begin());
  const uint64_t inner = extent_[k - 1];
  for (int64_t i = 0; i < rows; ++i) {
    reader_.read(file_, step(place, axes_[k - 1], i).offset, {stage_.get() + i * padded(inner), inner});
  }
  axes[k - 1].count = rows;
  axes[k - 1].source = padded(inner);
  const std::span<const Axis> used = std::span(axes).first(k);
  strided_copy(place.target, stage_.get(), used, item_);
  add_sums(stage_.get(), 0, used, place);
}

void PieceCopier::add_sums(const std::byte* memory, uint64_t bytes, std::span<const Axis> axes, const Place& place) {
  if (sums_->want_crc32) sums_->crc32 = crc32({memory, bytes}, sums_->crc32);
  if (sums_->crc64 != nullptr) add_runs(*sums_->crc64, memory, axes, item_, place.logical);
}

uint32_t PieceCopier::crc32_of(SourceIndex file, uint64_t offset, uint64_t length) {
  uint32_t crc = 0;
  for (uint64_t done = 0; done < length; done += stage_size_) {
    check_cancel();
    const std::span<std::byte> part(stage_.get(), std::min(stage_size_, length - done));
    reader_.read(file, offset + done, part);
    crc = crc32(part, crc);
  }
  return crc;
}

void PieceCopier::check_cancel() const {
  if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) throw Error(Exit::interrupted, "interrupted");
}

}  // namespace fsdpctl
