// Writing the files of a plan: transfer() of engine.h.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <thread>

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
           const std::string& journal_path, const EngineOptions& options);
  TransferResult run();

 private:
  class Worker;
  struct File {
    std::unique_ptr<FileCrcs> crcs;       // where its layout needs them, until it is finished
    std::atomic<uint64_t> jobs_left{0};
    bool reused = false;                  // an earlier run left it, with its size
  };

  void find_files();
  void open_journal();
  bool resume(const JobRecord& record);
  void create_files();
  void work();
  void keep_finished_jobs();
  void add(const JobRecord& record, size_t file);
  void finish_file(size_t file, OutputFile& output);
  void check_all_written() const;

  const Checkpoint& checkpoint_;
  const FilePlan& plan_;
  const std::string& directory_;
  const std::string& journal_path_;
  const EngineOptions& options_;
  const JobList jobs_;
  GatherContext context_;
  TensorTotals totals_;
  Crew crew_;
  std::vector<std::string> paths_;        // of the plan's files
  std::vector<File> files_;
  std::vector<bool> done_;                // jobs that an earlier run finished
  std::optional<Journal> journal_;
  std::optional<Commits> commits_;
  std::atomic<DirectMode> direct_mode_;
  TransferResult result_;
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
    if (!t_.done_[number]) write(number, job);
    if (t_.files_[job.file].jobs_left.fetch_sub(1) == 1) t_.finish_file(job.file, *output_);
  }

 private:
  void open(size_t file) {
    if (output_ && file_ == file) return;
    if (output_) output_->close();
    output_.emplace(t_.paths_[file], t_.direct_mode_);
    file_ = file;
  }

  void write(uint64_t number, const Job& job) {
    JobRecord record;
    record.job = number;
    for (uint64_t at = job.begin; at < job.end; at += block_bytes_) {
      if (t_.crew_.stop()->load(std::memory_order_relaxed)) throw Error(Exit::interrupted, "interrupted");
      const std::span<std::byte> block(block_.get(), std::min(block_bytes_, job.end - at));
      filler_.fill(*t_.plan_[job.file], at, block, record);
      output_->write(at, block);
      t_.crew_.advance(block.size());
    }
    record.ranges = gatherer_.take_ranges();
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
                   const std::string& journal_path, const EngineOptions& options)
    : checkpoint_(checkpoint),
      plan_(plan),
      directory_(directory),
      journal_path_(journal_path),
      options_(options),
      jobs_(plan),
      context_(checkpoint),
      totals_(checkpoint),
      crew_(options, jobs_.bytes()),
      paths_(plan.size()),
      files_(plan.size()),
      done_(jobs_.size()),
      direct_mode_(options.direct ? DirectMode::untried : DirectMode::refused) {}

TransferResult Transfer::run() {
  find_files();
  if (!journal_path_.empty()) open_journal();
  create_files();
  try {
    work();
  } catch (...) {
    keep_finished_jobs();
    throw;
  }
  check_all_written();
  result_.tensors = totals_.sums();
  result_.bytes_written = jobs_.bytes() - result_.bytes_resumed;
  return std::move(result_);
}

void Transfer::work() {
  // More threads than processors: some wait for the disk.
  const int wanted = static_cast<int>(std::clamp(4 * std::thread::hardware_concurrency(), 12u, 16u));
  const CrewSize size = crew_size(options_, wanted, jobs_.size(), kLeastMemory);
  crew_.run(size.threads, jobs_.size(), [&]() -> Crew::Worker {
    auto worker = std::make_shared<Worker>(*this, size.memory);
    return [worker](uint64_t job) { (*worker)(job); };
  });
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
    if (journal_path_.empty()) continue;
    const FileStat there = stat_path(paths_[i]);
    file.reused = there.kind == FileKind::file && !there.is_link && there.size == plan_[i]->size();
  }
}

void Transfer::open_journal() {
  journal_.emplace(journal_path_, jobs_.plan_hash(), [this](const JobRecord& record) { return resume(record); });
  commits_.emplace(*journal_, paths_, options_.journal_interval);
  if (result_.bytes_resumed > 0) crew_.advance(result_.bytes_resumed);
}

// False where the record cannot be of this operation, or its file is gone: then its job is not done.
bool Transfer::resume(const JobRecord& record) {
  if (record.job >= jobs_.size() || done_[record.job]) return false;
  const Job job = jobs_.job(record.job);
  const File& file = files_[job.file];
  const auto known = [&](const auto& part, auto index, size_t limit) { return part.*index < limit; };
  bool good = file.reused && (record.items.empty() || file.crcs);
  for (const TensorPart& part : record.tensors) good &= known(part, &TensorPart::tensor, checkpoint_.tensors.size());
  for (const ItemPart& part : record.items) good = good && known(part, &ItemPart::item, file.crcs->size());
  for (const PieceRange& range : record.ranges) good &= known(range, &PieceRange::piece, checkpoint_.pieces.size());
  if (!good) return false;
  for (const PieceRange& range : record.ranges) context_.crcs.add(range);
  add(record, job.file);
  done_[record.job] = true;
  result_.bytes_resumed += job.end - job.begin;
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
    const bool overwrite = !journal_path_.empty() && stat_path(paths_[i]).kind == FileKind::file;
    FileHandle handle = overwrite ? FileHandle::open_write(paths_[i]) : FileHandle::create(paths_[i]);
    handle.resize(plan_[i]->size());
    handle.preallocate(plan_[i]->size());
    handle.close();
  }
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
                        const std::string& journal_path, const EngineOptions& options) {
  return Transfer(checkpoint, plan, directory, journal_path, options).run();
}

}  // namespace fsdpctl
