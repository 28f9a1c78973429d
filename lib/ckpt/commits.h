// Commits: finished jobs on their way into the journal.
//
// A job's line must not be written before the job's data was synced, and a sync waits for the disk as long for one job as
// for many. So jobs wait here, and one sync of their files serves all that have come together. A killed run
// loses the work of one interval at most. Thread-safe.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "lib/ckpt/journal.h"

namespace fsdpctl {

class Commits {
 public:
  // paths: of the plan's files. Both arguments must outlive this.
  Commits(Journal& journal, const std::vector<std::string>& paths, std::chrono::milliseconds interval)
      : journal_(journal), paths_(paths), interval_(interval) {}

  // A job of that file has been written. Commits everything that waits, if it is time.
  void add(size_t file, const JobRecord& record);
  // That file was synced after its last job.
  void synced(size_t file);
  // Commits everything that waits.
  void flush();

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    size_t file = 0;
    std::string line;   // of the journal
  };
  bool is_due() const;
  void commit(std::vector<Waiting> jobs);

  Journal& journal_;
  const std::vector<std::string>& paths_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::vector<Waiting> waiting_;
  size_t text_bytes_ = 0;               // of the lines that wait
  Clock::time_point last_ = Clock::now();
};

}  // namespace fsdpctl
