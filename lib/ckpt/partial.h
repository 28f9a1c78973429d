// PartialDirectory: OUT.partial-<id>, where an output grows until it is proven.
//
//   data/      the output itself: the directory that becomes OUT, or the one file that does
//   journal    finished jobs of the engine, so that a killed run is continued; journal-I-of-N of worker I
//   lock       held by the run that works here, or shared by the workers that do; worker-I-of-N by worker I
//   manifest   of a single-file output, until it is put beside it
//
// <id> is a hash of what the output will be made of and how, so the same command finds its own partial again and a changed source starts
// a new one.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.h"
#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/engine.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

// 16 hex digits: CRC-64 of the arguments, of the source files' names, sizes and times, and of the plan's files and sizes. Independent of
// where the source lies.
std::string partial_id(const Checkpoint& checkpoint, const FilePlan& plan, std::string_view arguments);

class PartialDirectory {
 public:
  static std::string path_for(const std::string& output, const std::string& id) { return output + ".partial-" + id; }
  // Creates or reopens it. Error(failed) while another run holds the lock.
  static PartialDirectory open(const std::string& output, const std::string& id);
  // For a worker that has left its WorkerDirectory: nullopt while others are still in theirs. When all workers are
  // done, the last one that asks gets it.
  static std::optional<PartialDirectory> open_after_workers(const std::string& output, const std::string& id);

  const std::string& path() const { return path_; }
  Journals journals() const;              // of this run, and those of workers
  std::string data() const { return join_path(path_, "data"); }
  std::string journal() const { return join_path(path_, "journal"); }
  std::string manifest() const { return join_path(path_, "manifest"); }
  bool continued() const { return continued_; }   // a journal of an earlier run is there

  void start_again();   // forgets what earlier runs did
  // To be called before data/ gets its name: what lies there afterwards (the output that was replaced, or nothing) must never be
  // taken for finished work.
  void close_journal();
  void remove();        // the whole directory, lock included

 private:
  PartialDirectory(std::string path, FileLock lock);
  std::string path_;
  std::optional<FileLock> lock_;
  bool continued_ = false;
};

// The same directory as one of several workers uses it, side by side with the others.
class WorkerDirectory {
 public:
  // Creates or reopens it; waits while a run that has it to itself ends, until `cancel`. Error(failed) while another
  // process does the same share.
  static WorkerDirectory open(const std::string& output, const std::string& id, const Share& share, const std::atomic<bool>* cancel);

  std::string data() const { return join_path(path_, "data"); }
  Journals journals() const;              // of this share, and all others

 private:
  WorkerDirectory(std::string path, std::string name, FileLock shared, FileLock own);
  std::string path_, name_;
  FileLock shared_, own_;
};

// Partials of the same output that other runs left behind: their names.
std::vector<std::string> other_partials(const std::string& output, const std::string& id);

}  // namespace fsdpctl
