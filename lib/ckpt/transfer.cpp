// Writing the files of a plan: transfer() of engine.h.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "lib/ckpt/block_filler.h"
#include "lib/ckpt/commits.h"
#include "lib/ckpt/crew.h"
#include "lib/ckpt/engine.h"
#include "lib/ckpt/jobs.h"
#include "lib/ckpt/journal.h"
#include "lib/ckpt/late_writer.h"
#include "lib/ckpt/output_file.h"
#include "lib/ckpt/tensor_totals.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kLargestBlock = 4 << 20;
constexpr uint64_t kGatherMemory = 16 << 20;
constexpr uint64_t kLeastMemory = kBlockUnit + Gatherer::kLeastMemory;

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeMemory>;

AlignedBuffer aligned_buffer(uint64_t bytes) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(OutputFile::kAlignment, bytes));
  if (memory == nullptr) throw Error(Exit::failed, "out of memory");
  return AlignedBuffer(memory);
}

// One operation: the state that its workers share.
class Transfer {
 public:
  Transfer(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
           const Journals& journals, const EngineOptions& options);
  TransferResult run();
  uint64_t run_share(const Share& share);

 private:
  class Worker;
  struct File {
    std::unique_ptr<FileCrcs> crcs;       // where its layout needs them, until it is finished
    std::atomic<uint64_t> jobs_left{0};
    bool reused = false;                  // an earlier run left it, with its size
  };

  void find_files();
  void prepare();
  void read_journals();
  bool resume(const JobRecord& record);
  void create_files();
  void work(JobRange range);
  void keep_finished_jobs();
  void add(const JobRecord& record, size_t file);
  void keep(const Job& job, const JobRecord& record);
  void finish_file(size_t file, OutputFile& output);
  void check_all_written() const;

  const Checkpoint& checkpoint_;
  const FilePlan& plan_;
  const std::string& directory_;
  const Journals& journals_;
  const EngineOptions& options_;
  const JobList jobs_;
  GatherContext context_;
  TensorTotals totals_;
  Crew crew_;
  std::vector<std::string> paths_;        // of the plan's files
  std::vector<File> files_;
  std::unordered_map<uint64_t, JobRecord> known_;   // jobs that an earlier run finished
  std::atomic<uint64_t> written_{0}, redone_{0};    // bytes
  std::optional<Journal> journal_;
  std::optional<Commits> commits_;
  std::atomic<DirectMode> direct_mode_;
  bool whole_ = true;                     // false: a share of the jobs
};

// One thread's part.
class Transfer::Worker {
 public:
  Worker(Transfer& transfer, uint64_t memory)
      : t_(transfer),
        block_bytes_(std::clamp(memory / 2 / kBlockUnit * kBlockUnit, kBlockUnit, kLargestBlock)),
        block_(aligned_buffer(block_bytes_)),
        gatherer_(transfer.context_, std::min(memory - block_bytes_, kGatherMemory), transfer.crew_.stop()),
        filler_(transfer.checkpoint_, gatherer_) {}

  void operator()(uint64_t number) {
    const Job job = t_.jobs_.job(number);
    open(job.file);
    const auto known = t_.known_.find(number);
    if (known != t_.known_.end() && still_holds(job, known->second)) {
      t_.keep(job, known->second);
    } else {
      write(number, job);
      if (known != t_.known_.end()) t_.redone_ += job.end - job.begin;
    }
    // In a share, the files are finished by the process that knows all journals.
    if (t_.whole_ && t_.files_[job.file].jobs_left.fetch_sub(1) == 1) t_.finish_file(job.file, *output_);
  }

 private:
  void open(size_t file) {
    if (output_ && file_ == file) return;
    if (output_) output_->close();
    output_.emplace(t_.paths_[file], t_.direct_mode_);
    file_ = file;
  }

  // A disk, or somebody, may have changed what an earlier run wrote.
  bool still_holds(const Job& job, const JobRecord& known) {
    if (!t_.journals_.check) return true;
    JobRecord found;
    for (uint64_t at = job.begin; at < job.end; at += block_bytes_) {
      check_stop();
      const std::span<std::byte> block(block_.get(), std::min(block_bytes_, job.end - at));
      try {
        output_->read(at, block);
      } catch (const Error&) {
        return false;   // writing may help, or fails for the same reason
      }
      if (!filler_.check(*t_.plan_[job.file], at, block, found)) return false;
    }
    return same_output(found, known);
  }

  void check_stop() const {
    if (t_.crew_.stop()->load(std::memory_order_relaxed)) throw Error(Exit::interrupted, "interrupted");
  }

  void write(uint64_t number, const Job& job) {
    JobRecord record;
    record.job = number;
    for (uint64_t at = job.begin; at < job.end; at += block_bytes_) {
      check_stop();
      const std::span<std::byte> block(block_.get(), std::min(block_bytes_, job.end - at));
      filler_.fill(*t_.plan_[job.file], at, block, record);
      output_->write(at, block);
      t_.crew_.advance(block.size());
    }
    record.ranges = gatherer_.take_ranges();
    t_.written_ += job.end - job.begin;
    if (t_.commits_) t_.commits_->add(job.file, record);
    t_.add(record, job.file);
  }

  Transfer& t_;
  const uint64_t block_bytes_;
  AlignedBuffer block_;
  Gatherer gatherer_;
  BlockFiller filler_;
  std::optional<OutputFile> output_;
  size_t file_ = 0;
};

Transfer::Transfer(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                   const Journals& journals, const EngineOptions& options)
    : checkpoint_(checkpoint),
      plan_(plan),
      directory_(directory),
      journals_(journals),
      options_(options),
      jobs_(plan),
      context_(checkpoint),
      totals_(checkpoint),
      crew_(options),
      paths_(plan.size()),
      files_(plan.size()),
      direct_mode_(options.direct ? DirectMode::untried : DirectMode::refused) {}

TransferResult Transfer::run() {
  prepare();
  work({0, jobs_.size()});
  check_all_written();
  return {totals_.sums(), written_, jobs_.bytes() - written_, redone_};
}

uint64_t Transfer::run_share(const Share& share) {
  whole_ = false;
  prepare();
  const JobRange range = jobs_.of(share);
  work(range);
  commits_->flush();
  return written_;
}

void Transfer::prepare() {
  find_files();
  read_journals();
  create_files();
}

void Transfer::work(JobRange range) try {
  // More threads than processors: some wait for the disk.
  const int wanted = static_cast<int>(std::clamp(4 * std::thread::hardware_concurrency(), 12u, 16u));
  uint64_t bytes = 0;
  for (uint64_t number = range.begin; number < range.end; ++number) {
    const Job job = jobs_.job(number);
    bytes += job.end - job.begin;
  }
  crew_.expect(bytes);
  const CrewSize size = crew_size(options_, wanted, range.end - range.begin, kLeastMemory);
  crew_.run(size.threads, range.end - range.begin, [&]() -> Crew::Worker {
    auto worker = std::make_shared<Worker>(*this, size.memory);
    return [worker, first = range.begin](uint64_t job) { (*worker)(first + job); };
  });
} catch (...) {
  keep_finished_jobs();
  throw;
}

// After an error or a cancel: the next run need not do again what was done.
void Transfer::keep_finished_jobs() {
  if (!commits_) return;
  try {
    commits_->flush();
  } catch (const Error&) {
    // The disk that this error is about is most likely what ended the run.
  }
}

void Transfer::find_files() {
  for (size_t i = 0; i < plan_.size(); ++i) {
    File& file = files_[i];
    paths_[i] = join_path(directory_, plan_[i]->path());
    file.jobs_left = jobs_.jobs_of(i);
    if (plan_[i]->needs_crc32()) file.crcs = std::make_unique<FileCrcs>(plan_[i]->item_count());
    if (journals_.own.empty()) continue;
    const FileStat there = stat_path(paths_[i]);
    file.reused = there.kind == FileKind::file && !there.is_link && there.size == plan_[i]->size();
  }
}

void Transfer::read_journals() {
  const auto visit = [this](const JobRecord& record) { return resume(record); };
  for (const std::string& path : journals_.others) read_journal(path, jobs_.plan_hash(), visit);
  if (journals_.own.empty()) return;
  journal_.emplace(journals_.own, jobs_.plan_hash(), visit);
  commits_.emplace(*journal_, paths_, options_.journal_interval);
}

// False where the record cannot be of this operation, or its file is gone: then its job is not done. Whether its bytes are still
// there is seen when it is the job's turn.
bool Transfer::resume(const JobRecord& record) {
  if (record.job >= jobs_.size()) return false;
  if (known_.count(record.job) != 0) return true;   // two journals may tell of it
  const Job job = jobs_.job(record.job);
  const File& file = files_[job.file];
  const auto known = [&](const auto& part, auto index, size_t limit) { return part.*index < limit; };
  bool good = file.reused && (record.items.empty() || file.crcs);
  for (const TensorPart& part : record.tensors) good &= known(part, &TensorPart::tensor, checkpoint_.tensors.size());
  for (const ItemPart& part : record.items) good = good && known(part, &ItemPart::item, file.crcs->size());
  for (const PieceRange& range : record.ranges) good &= known(range, &PieceRange::piece, checkpoint_.pieces.size());
  if (!good) return false;
  known_.emplace(record.job, record);
  return true;
}

// All files first, with their sizes: a disk that is too small is found out before hours of work.
void Transfer::create_files() {
  std::set<std::string> directories;
  for (size_t i = 0; i < files_.size(); ++i) {
    const File& file = files_[i];
    if (file.reused) continue;
    const std::string parent = parent_path(paths_[i]);
    if (directories.insert(parent).second) make_directories(parent);
    // With a journal an earlier run, or another process at this moment, may have created it.
    FileHandle handle = journals_.own.empty() ? FileHandle::create(paths_[i]) : FileHandle::open_or_create(paths_[i]);
    handle.resize(plan_[i]->size());
    handle.preallocate(plan_[i]->size());
    handle.close();
  }
}

void Transfer::keep(const Job& job, const JobRecord& record) {
  for (const PieceRange& range : record.ranges) context_.crcs.add(range);
  add(record, job.file);
  crew_.advance(job.end - job.begin);
}

void Transfer::add(const JobRecord& record, size_t file) {
  for (const TensorPart& part : record.tensors) totals_.add(part);
  for (const ItemPart& part : record.items) files_[file].crcs->add(part);
}

// By the thread whose job was the file's last.
void Transfer::finish_file(size_t index, OutputFile& output) {
  File& file = files_[index];
  if (file.crcs) write_late_segments(*plan_[index], *file.crcs, output);
  file.crcs.reset();
  output.sync();
  if (commits_) commits_->synced(index);
}

void Transfer::check_all_written() const {
  for (TensorIndex t = 0; t < checkpoint_.tensors.size(); ++t) {
    const TensorInfo& info = checkpoint_.tensors[t];
    const uint64_t wanted = count(info.shape) * item_size(info.dtype), written = totals_.bytes(t);
    if (written == wanted || written == 0) continue;
    throw Error(Exit::failed, "plan does not write every element exactly once")
        .key(std::string(info.key))
        .saw(std::to_string(wanted) + " bytes", std::to_string(written));
  }
}

}  // namespace

TransferResult transfer(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                        const Journals& journals, const EngineOptions& options) {
  return Transfer(checkpoint, plan, directory, journals, options).run();
}

uint64_t transfer_share(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                        const Journals& journals, const Share& share, const EngineOptions& options) {
  return Transfer(checkpoint, plan, directory, journals, options).run_share(share);
}

bool all_jobs_done(const FilePlan& plan, const std::vector<std::string>& journals) {
  const JobList jobs(plan);
  std::vector<bool> done(jobs.size());
  for (const std::string& path : journals) {
    read_journal(path, jobs.plan_hash(), [&](const JobRecord& record) {
      if (record.job >= done.size()) return false;
      done[record.job] = true;
      return true;
    });
  }
  return std::all_of(done.begin(), done.end(), [](bool is) { return is; });
}

}  // namespace fsdpctl
