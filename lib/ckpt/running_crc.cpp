#include "lib/ckpt/running_crc.h"

#include <algorithm>

namespace fsdpctl {

void RunningCrc64::add(uint64_t begin, Bytes run) {
  if (begin == end_) {
    chain_ = crc64_raw(run, chain_);
  } else {
    if (begin < end_) close();
    const uint64_t after = begin + run.size();
    chain_ = (chain_ == 0 ? 0 : shift(chain_, after - end_)) ^ crc64_raw(run);
  }
  end_ = begin + run.size();
}

uint64_t RunningCrc64::contribution() {
  close();
  return closed_;
}

uint64_t RunningCrc64::shift(uint64_t raw, uint64_t distance) {
  for (const Known& known : known_) {
    if (known.distance == distance) return known.step.shift(raw);
  }
  Known& known = known_[next_++ % known_.size()];
  known = {distance, Crc64Step(distance)};
  return known.step.shift(raw);
}

void RunningCrc64::close() {
  closed_ ^= crc64_shift(chain_, total_ - end_);
  chain_ = 0;
}

namespace {

void add_outer(RunningCrc64& crc, const std::byte* memory, std::span<const Axis> axes, size_t run, uint64_t logical) {
  if (axes.empty()) return crc.add(logical, {memory, run});
  const Axis& axis = axes.back();
  for (int64_t i = 0; i < axis.count; ++i) {
    add_outer(crc, memory + i * axis.source, axes.first(axes.size() - 1), run,
              logical + static_cast<uint64_t>(i * axis.logical));
  }
}

}  // namespace

void add_runs(RunningCrc64& crc, const std::byte* memory, std::span<const Axis> axes, uint32_t item, uint64_t logical) {
  std::array<Axis, kMaxAxes> sorted;   // in the tensor's order, so that distances repeat
  std::copy(axes.begin(), axes.end(), sorted.begin());
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(axes.size());
  std::sort(sorted.begin(), end, [](const Axis& a, const Axis& b) { return a.logical < b.logical; });
  int64_t run = item;
  auto outer = sorted.begin();
  for (; outer != end && outer->logical == run && outer->source == run; ++outer) run *= outer->count;
  add_outer(crc, memory, {outer, end}, static_cast<size_t>(run), logical);
}

}  // namespace fsdpctl
