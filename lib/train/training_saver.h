// TrainingSaver: a run's checkpoints. Every rank writes what it holds; the first one proves the whole and gives it its name.
//
// All ranks make one, and then call save() or start() at the same steps with the same path. Between these calls a saver
// talks through the store alone, so a save in the background never meets the collectives of training. What goes wrong on any
// rank is thrown on every rank, as the failure of the lowest such rank, and nothing is published.
//
// One thread. The state, with its model and optimizer, must outlive the saver and not move.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/ckpt/format.h"
#include "lib/ckpt/publish.h"
#include "lib/comm/communicator.h"
#include "lib/comm/store.h"
#include "lib/train/training_state.h"

namespace fsdpctl::train {

struct SaverOptions {
  const Format* format = nullptr;    // that writes; never null
  bool background = false;           // start() will be called: memory for a copy of the state is taken, and touched, at once
  uint64_t keep = 0;                 // saves of this run's to keep; 0: all
  bool read_back = true;             // read what was written, past the page cache where possible
  int threads = 1;                   // of each rank
  uint64_t max_memory = 32ull << 20; // buffers of each rank
  Milliseconds patience{120'000};    // for another rank, while no rank makes progress
  const std::atomic<bool>* cancel = nullptr;   // true: saves end soon, with Error(interrupted)
};

struct SaveReport {
  std::string path;
  uint64_t step = 0;
  bool background = false;
  uint64_t bytes = 0;                // of the whole checkpoint
  uint64_t bytes_written = 0;        // by this rank
  double waited = 0;                 // seconds for the save before
  double copying = 0;                // seconds that training stood still for the copy
  double seconds = 0;                // until it was published
  std::vector<std::string> removed;  // paths of older saves; of the first rank
  std::vector<Finding> warnings;     // of the first rank
};

class TrainingSaver {
 public:
  // Collective over `world`, the communicator of all ranks. `store` may be null where there is one rank.
  TrainingSaver(TrainingState& state, Communicator& world, std::shared_ptr<Store> store, const SaverOptions& options);
  ~TrainingSaver();                  // waits for the save under way; what goes wrong with it is lost
  TrainingSaver(const TrainingSaver&) = delete;

  // Writes a checkpoint to `path`, which is not there yet, and returns when it is published. Waits for one under way first.
  // Errors as publish(): the run may go on after them.
  SaveReport save(const std::string& path);

  // The same beside training: returns when the state was copied. Where the save before is not done, waits for it; its report (or
  // its error) is then what this returns (throws).
  std::optional<SaveReport> start(const std::string& path);
  // The report of the started save, once it is done and was not reported; nothing before.
  std::optional<SaveReport> finished();
  // The same, waiting for it.
  std::optional<SaveReport> wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdpctl::train
