// A run on one rank that can be saved and resumed: a small model, the optimizer, and steps over micro-batches that do not depend on the
// number of ranks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/threads.h"
#include "lib/train/restore_training_state.h"
#include "lib/train/training_saver.h"

namespace fsdpctl::train {

struct RunToSave {
  std::function<std::unique_ptr<Module>()> model;   // default: an MLP of 3 layers
  int shards = 2, replicas = 1;
  ShardPlacement placement = ShardPlacement::flat;
  DType compute = DType::float32;
  bool offload_parameters = false, offload_moments = false;
  uint64_t seed = 1;
  std::function<std::vector<int64_t>(uint64_t step, uint64_t micro_batch)> tokens;   // 2 x 9, below 32; default: made ones
  int micro_batches = 4;              // of a step, over all ranks: a multiple of their number
  FSDPadaptOptions optimizer = [] {
    FSDPadaptOptions o;
    o.optimizer.defaults.lr = 0.01;
    o.schedule.kind = LrScheduleOptions::Kind::cosine;
    o.schedule.warmup_steps = 2;
    o.schedule.total_steps = 20;
    return o;
  }();
  bool tied = false;                  // head and embedding, of the default model
  std::string frozen;                 // the name of a parameter that is not trained
  std::string config = R"({"model": {"hidden": 12}, "optimizer": {"kind": "adamw", "lr": 0.01}})";
};

// One rank, in its thread.
class RankOfRun {
 public:
  RankOfRun(const RunToSave& run, const Mesh& mesh, Communicator& world, std::shared_ptr<Store> store);
  ~RankOfRun();

  double step();                      // the mean loss of its micro-batches, the same on all ranks
  std::vector<double> steps(int n);

  const RunToSave& run;
  const Mesh mesh;
  Communicator& world;
  const std::shared_ptr<Store> store;
  std::unique_ptr<Device> device;
  std::unique_ptr<FsdpModel> model;
  std::unique_ptr<FSDPadaptOptimizer> optimizer;
  std::optional<TrainingState> state;
};

// Runs a body on every rank; what each ended with, if with an Error.
std::vector<std::optional<Finding>> on_ranks(const RunToSave& run, const std::function<void(RankOfRun&)>& body);
// The same; fails the test where a rank ends with an Error.
void on_all_ranks(const RunToSave& run, const std::function<void(RankOfRun&)>& body);

// Masters, frozen values, moments and steps as whole tensors, whatever ranks hold of them: by "fqn", "fqn.0", "fqn.1", "fqn.step". Of all
// ranks together, when all have put theirs in.
class WholeState {
 public:
  void add(RankOfRun& rank);
  std::map<std::string, std::vector<float>> tensors;

 private:
  std::mutex mutex_;
};

}  // namespace fsdpctl::train
