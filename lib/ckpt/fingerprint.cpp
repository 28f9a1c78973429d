// Reading without writing: fingerprint() and read_tensor() of engine.h.
#include <algorithm>
#include <numeric>
#include <thread>

#include "lib/ckpt/crew.h"
#include "lib/ckpt/engine.h"
#include "lib/ckpt/tensor_totals.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kBlock = 256 << 10;            // what was read is summed while it is in the cache
constexpr uint64_t kStridedBlock = 4 << 20;       // transposed tensors: larger blocks have longer runs on disk
constexpr uint64_t kLeastMemory = kBlock + Gatherer::kLeastMemory;
constexpr uint64_t kSmallestJob = 1 << 20, kLargestJob = 16 << 20;

// Bytes of tensor `t` to read at once, whole elements.
uint64_t block_bytes(const Checkpoint& checkpoint, TensorIndex t, uint64_t largest) {
  const std::span<const Piece> pieces = checkpoint.pieces_of(t);
  const bool strided = !pieces.empty() && !pieces.front().strides.empty();
  const uint64_t item = item_size(checkpoint.tensors[t].dtype);
  return std::min(strided ? kStridedBlock : kBlock, largest) / item * item;
}

// Tensors one after the other in the order of their bytes on disk, cut into jobs of equal size.
class ReadingList {
 public:
  ReadingList(const Checkpoint& checkpoint, std::span<const TensorIndex> tensors);
  uint64_t bytes() const { return starts_.back(); }
  void set_job_bytes(uint64_t bytes) { job_bytes_ = bytes; }
  uint64_t jobs() const { return (bytes() + job_bytes_ - 1) / job_bytes_; }

  // Calls visit(tensor, begin, end) for the byte range of each tensor that belongs to the job.
  template <class Visit>
  void for_each_range(uint64_t job, Visit visit) const {
    const uint64_t begin = job * job_bytes_, end = std::min(begin + job_bytes_, bytes());
    auto start = std::upper_bound(starts_.begin(), starts_.end(), begin) - 1;
    for (; *start < end; ++start) {
      const TensorIndex t = order_[static_cast<size_t>(start - starts_.begin())];
      const uint64_t item = item_size(checkpoint_.tensors[t].dtype), size = *(start + 1) - *start;
      const uint64_t from = begin <= *start ? 0 : (begin - *start) / item * item;
      const uint64_t to = end - *start >= size ? size : (end - *start) / item * item;
      if (from < to) visit(t, from, to);
    }
  }

 private:
  const Checkpoint& checkpoint_;
  std::vector<TensorIndex> order_;
  std::vector<uint64_t> starts_;   // one more than tensors
  uint64_t job_bytes_ = kLargestJob;
};

ReadingList::ReadingList(const Checkpoint& checkpoint, std::span<const TensorIndex> tensors)
    : checkpoint_(checkpoint), order_(tensors.begin(), tensors.end()) {
  if (tensors.empty()) {
    order_.resize(checkpoint.tensors.size());
    std::iota(order_.begin(), order_.end(), TensorIndex{0});
  }
  const auto place = [&checkpoint](TensorIndex t) {
    const std::span<const Piece> pieces = checkpoint.pieces_of(t);
    return pieces.empty() ? std::pair<SourceIndex, uint64_t>() : std::pair(pieces.front().source, pieces.front().offset);
  };
  std::stable_sort(order_.begin(), order_.end(), [&](TensorIndex a, TensorIndex b) { return place(a) < place(b); });
  starts_.reserve(order_.size() + 1);
  starts_.push_back(0);
  for (TensorIndex t : order_) {
    const TensorInfo& info = checkpoint.tensors[t];
    starts_.push_back(starts_.back() + count(info.shape) * item_size(info.dtype));
  }
}

// Tensors that turned out to be damaged or unreadable, each reported once.
class DamageReport {
 public:
  DamageReport(const EngineOptions& options, size_t tensors) : options_(options), damaged_(options.on_damage ? tensors : 0) {}

  bool wanted() const { return static_cast<bool>(options_.on_damage); }
  bool has(TensorIndex t) const { return wanted() && damaged_[t]; }
  void add(TensorIndex t, const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!damaged_[t].exchange(true)) options_.on_damage(t, error);
  }

 private:
  const EngineOptions& options_;
  std::vector<std::atomic<bool>> damaged_;
  std::mutex mutex_;
};

class FingerprintWorker {
 public:
  FingerprintWorker(Crew& crew, GatherContext& context, TensorTotals& totals, DamageReport& damage, uint64_t memory)
      : crew_(crew),
        context_(context),
        totals_(totals),
        damage_(damage),
        largest_block_(std::clamp(memory / 2, kBlock, kStridedBlock)),
        gatherer_(context, memory - largest_block_, crew.stop()) {}

  void read(TensorIndex t, uint64_t begin, uint64_t end) {
    if (damage_.has(t)) return crew_.advance(end - begin);
    try {
      read_blocks(t, begin, end);
    } catch (const Error& error) {
      if (error.code() == Exit::interrupted || !damage_.wanted()) throw;
      damage_.add(t, error);
    }
  }

 private:
  void read_blocks(TensorIndex t, uint64_t begin, uint64_t end) {
    const Box whole = whole_region(context_.checkpoint.tensors[t]);
    const uint64_t block = std::min(block_bytes(context_.checkpoint, t, largest_block_), end - begin);
    if (buffer_.size() < block) buffer_.resize(block);
    TensorPart part = {t, end - begin, 0, 0, {}};
    for (uint64_t at = begin; at < end; at += block) {
      const uint64_t n = std::min(block, end - at);
      const GatherResult result = gatherer_.read(t, whole, at, at + n, std::span(buffer_).first(n));
      part.source_crc64 ^= result.source_crc64;
      part.crc64 ^= result.crc64;
      part.casts += result.casts;
      pending_ += n;
      if (pending_ < kSmallestJob) continue;
      crew_.advance(std::exchange(pending_, 0));
    }
    totals_.add(part);
  }

  Crew& crew_;
  GatherContext& context_;
  TensorTotals& totals_;
  DamageReport& damage_;
  const uint64_t largest_block_;
  Gatherer gatherer_;
  std::vector<std::byte> buffer_;
  uint64_t pending_ = 0;   // read but not yet reported as progress
};

}  // namespace

std::vector<TensorSum> fingerprint(const Checkpoint& checkpoint, std::span<const TensorIndex> tensors,
                                   const EngineOptions& options) {
  ReadingList list(checkpoint, tensors);
  const int processors = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 16u));
  const CrewSize size = crew_size(options, processors, list.bytes() / kSmallestJob, kLeastMemory);
  list.set_job_bytes(std::clamp(list.bytes() / static_cast<uint64_t>(8 * size.threads), kSmallestJob, kLargestJob));
  GatherContext context(checkpoint);
  TensorTotals totals(checkpoint);
  DamageReport damage(options, checkpoint.tensors.size());
  Crew crew(options, list.bytes());
  crew.run(size.threads, list.jobs(), [&]() -> Crew::Worker {
    auto worker = std::make_shared<FingerprintWorker>(crew, context, totals, damage, size.memory);
    return [worker, &list](uint64_t job) {
      list.for_each_range(job, [&](TensorIndex t, uint64_t begin, uint64_t end) { worker->read(t, begin, end); });
    };
  });
  return totals.sums();
}

void read_tensor(const Checkpoint& checkpoint, TensorIndex t, const EngineOptions& options,
                 const std::function<void(uint64_t offset, std::span<const std::byte>)>& visit) {
  const TensorInfo& info = checkpoint.tensors[t];
  const Box whole = whole_region(info);
  const uint64_t bytes = count(info.shape) * item_size(info.dtype);
  const uint64_t memory = std::max(options.max_memory, kLeastMemory);
  const uint64_t block = std::min(block_bytes(checkpoint, t, std::clamp(memory / 2, kBlock, kStridedBlock)), bytes);
  std::vector<std::byte> buffer(block);
  Gatherer gatherer(checkpoint, std::min<uint64_t>(memory - block, 4 << 20), options.cancel);
  for (uint64_t at = 0; at < bytes; at += block) {
    const std::span<std::byte> part = std::span(buffer).first(std::min(block, bytes - at));
    gatherer.read(t, whole, at, at + part.size(), part);
    visit(at, part);
  }
}

}  // namespace fsdpctl
