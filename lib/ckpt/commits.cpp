#include "lib/ckpt/commits.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace fsdpctl {
namespace {

constexpr size_t kLargestText = 16 << 20;   // lines that wait take memory: outputs of many small tensors have long ones

}  // namespace

void Commits::add(size_t file, const JobRecord& record) {
  std::string line = journal_line(record);
  std::vector<Waiting> due;
  {
    const std::lock_guard lock(mutex_);
    text_bytes_ += line.size();
    waiting_.push_back({file, std::move(line)});
    if (!is_due()) return;
    due = std::exchange(waiting_, {});
    text_bytes_ = 0;
    last_ = Clock::now();
  }
  commit(std::move(due));
}

bool Commits::is_due() const { return text_bytes_ >= kLargestText || Clock::now() - last_ >= interval_; }

void Commits::synced(size_t file) {
  const std::lock_guard lock(mutex_);
  const auto others = std::stable_partition(waiting_.begin(), waiting_.end(), [file](const Waiting& job) { return job.file != file; });
  for (auto job = others; job != waiting_.end(); ++job) {
    text_bytes_ -= job->line.size();
    journal_.append(job->line);
  }
  waiting_.erase(others, waiting_.end());
}

void Commits::flush() {
  std::vector<Waiting> rest;
  {
    const std::lock_guard lock(mutex_);
    rest = std::exchange(waiting_, {});
    text_bytes_ = 0;
  }
  commit(std::move(rest));
}

void Commits::commit(std::vector<Waiting> jobs) {
  std::set<size_t> files;
  for (const Waiting& job : jobs) files.insert(job.file);
  for (const size_t file : files) {
    FileHandle handle = FileHandle::open_write(paths_[file]);
    handle.sync();
    handle.close();
  }
  for (const Waiting& job : jobs) journal_.append(job.line);
}

}  // namespace fsdpctl
