// Jobs: the output of a plan cut into byte ranges, numbered in file order.
//
// A job never spans files; a small file is one job. How the output is cut depends on the plan alone, so that a journal
// fits whatever the threads and the memory of the next run are. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

// Blocks and jobs begin at multiples of this in their file (but for its end).
inline constexpr uint64_t kBlockUnit = 1 << 20;

struct Job {
  size_t file = 0;
  uint64_t begin = 0, end = 0;    // in the file
};

struct JobRange {
  uint64_t begin = 0, end = 0;
};

class JobList {
 public:
  explicit JobList(const FilePlan& plan);

  uint64_t size() const { return starts_.back(); }
  Job job(uint64_t number) const;
  uint64_t jobs_of(size_t file) const { return starts_[file + 1] - starts_[file]; }
  uint64_t bytes() const { return bytes_; }
  // The jobs that a share is to do: neighbours. Those of all shares are all jobs, each once.
  JobRange of(const Share& share) const;
  // Tells plans apart that must not share a journal: paths, sizes and numbers of items.
  uint64_t plan_hash() const { return hash_; }

 private:
  const FilePlan& plan_;
  uint64_t bytes_ = 0;
  uint64_t job_bytes_ = 0;
  uint64_t hash_ = 0;
  std::vector<uint64_t> starts_;   // number of each file's first job; one more than files
};

}  // namespace fsdpctl
