// Trainer: a run of training on one rank, from a config to its last checkpoint.
//
// A step: this rank's micro-batches, one division by the number of all, one step of the optimizer. Micro-batches are numbered
// over all ranks: the i-th of rank r is number i * ranks + r; losses are summed in this order. So reruns give the same bits, and so
// does one rank with the micro-batches of several.
//
// Everything is collective: all ranks make a trainer and call the same functions. One thread. What is handed over must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/store.h"
#include "lib/train/config/train_config.h"
#include "lib/train/restore_training_state.h"
#include "lib/train/run_setup.h"
#include "lib/train/step_report.h"
#include "lib/train/training_saver.h"

namespace fsdpctl::train {

struct TrainerRanks {
  Communicator& world;
  Mesh mesh;
  std::shared_ptr<Store> store;   // may be null where there is one rank
};

// Called on the first rank alone.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void on_step(const StepReport& report) = 0;
  virtual void on_saved(const SaveReport& report) = 0;
  virtual void on_warning(const Finding& finding) = 0;
};

struct TrainingOutcome {
  uint64_t step = 0;
  int signal = 0;                 // that ended it before its last step; 0: none
  std::string last_checkpoint;    // empty: none was written or read
};

struct TrainerOptions {
  const Format* format = nullptr;       // of checkpoints; null where none are written
  int threads = 1;                      // for saving, of each rank
  uint64_t max_memory = 96ull << 20;    // of buffers for saving, of each rank
  const std::atomic<int>* signal = nullptr;   // the last signal that came; 0: none
  bool restores = false;                // restore() follows: first values are not needed
};

class Trainer {
 public:
  // `config` fits its ranks (fit_to_world). Model and optimizer with their first values.
  Trainer(TrainConfig config, const TrainerRanks& ranks, Device& device, const FormatList& formats, const TrainerOptions& options);
  ~Trainer();
  Trainer(const Trainer&) = delete;

  // Continues what `path` holds. Error(refused) as restore_training_state().
  RestoreReport restore(const std::string& path, const RestoreOptions& options);

  // Trains to the last step, or until a signal, and saves as the config says. Error(failed) after too many skipped steps, naming
  // the last good checkpoint.
  TrainingOutcome run(TrainingObserver& observer);
  // Writes the state as it is to `path`.
  SaveReport save(const std::string& path);

  uint64_t step() const { return state_.step; }
  FsdpModel& model() { return *model_; }
  FSDPadaptOptimizer& optimizer() { return *optimizer_; }

 private:
  struct Exchanged;
  StepReport train_step();
  double micro_batch(uint64_t index, bool last);
  Exchanged exchange(const std::vector<double>& losses, uint64_t count, const char* unit);
  double validate();
  bool is_due(uint64_t interval) const { return interval != 0 && state_.step % interval == 0; }
  void after_step(const StepReport& report, TrainingObserver& observer);
  void save_step(TrainingObserver& observer, bool last);
  void report_save(const SaveReport& report, TrainingObserver& observer);
  TrainingSaver& saver();
  bool first_rank() const { return ranks_.world.rank() == 0; }

  const TrainConfig config_;
  const TrainerRanks ranks_;
  const FormatList& formats_;
  const TrainerOptions options_;
  std::unique_ptr<FsdpModel> model_;
  std::unique_ptr<FSDPadaptOptimizer> optimizer_;
  Batches batches_;
  std::optional<Batches> validation_;
  TrainingState state_;
  std::unique_ptr<TrainingSaver> saver_;
  std::string last_checkpoint_;
};

// Threads that compute in this process.
void set_compute_threads(int threads);

}  // namespace fsdpctl::train
