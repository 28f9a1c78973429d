#include "lib/ckpt/jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

// Small, so that what all threads write at a time lies close together in the file: disks are faster then. Larger ones keep
// the journal of a very large output short.
constexpr uint64_t kSmallestJob = 4 << 20, kLargestJob = 1 << 30;
constexpr uint64_t kJobsWanted = 1 << 14;

uint64_t rounded_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

JobList::JobList(const FilePlan& plan) : plan_(plan) {
  std::string text;
  for (const auto& file : plan) {
    bytes_ += file->size();
    text += fmt::format("{}\n{} {} {}\n", file->path(), file->size(), file->item_count(), file->needs_crc32());
  }
  job_bytes_ = std::clamp(rounded_up(bytes_ / kJobsWanted, kBlockUnit), kSmallestJob, kLargestJob);
  hash_ = crc64(std::as_bytes(std::span(text)));
  starts_.push_back(0);
  for (const auto& file : plan) {
    starts_.push_back(starts_.back() + std::max<uint64_t>(1, (file->size() + job_bytes_ - 1) / job_bytes_));
  }
}

Job JobList::job(uint64_t number) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), number);
  const size_t file = static_cast<size_t>(next - starts_.begin()) - 1;
  const uint64_t begin = (number - starts_[file]) * job_bytes_;
  return {file, begin, std::min(begin + job_bytes_, plan_[file]->size())};
}

JobRange JobList::of(const Share& share) const {
  const auto begin = [&](uint64_t index) {
    return size() / share.count * index + size() % share.count * index / share.count;
  };
  return {begin(share.index), begin(share.index + 1)};
}

}  // namespace fsdpctl
