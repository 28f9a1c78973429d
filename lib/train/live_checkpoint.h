// The state of a run as a Checkpoint: one catalog on all ranks, whose bytes are where training has them, or a copy of that.
//
// The catalog knows which rank holds which elements (of replicas, the first); only a rank's own bytes can be read through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/comm/communicator.h"
#include "lib/train/training_state.h"

namespace fsdpctl::train {

// Everything of a state that is not in tensors, as it was at one moment.
struct StateValues {
  uint64_t step = 0, samples = 0;
  std::string config;
  std::vector<uint64_t> steps;          // of each parameter of the optimizer, by its id
  std::vector<ParamGroup> groups;
  DynamicGradScaler scaler;
  LrSchedule schedule;
  double max_norm = 0;
};
StateValues values_of(const TrainingState& state);

// What this rank holds of one parameter's master, or of one of its moments.
struct StatePart {
  size_t parameter = 0;                 // its place in the model
  int moment = -1;                      // or the master
  uint64_t bytes = 0;
};

struct LiveCheckpoint {
  Checkpoint checkpoint;                // format "training"
  std::shared_ptr<const std::vector<float>> steps;   // memory that it reads besides what it was given
};

class LiveState {
 public:
  // Collective over `world`. The state must outlive this.
  LiveState(TrainingState& state, Communicator& world);
  ~LiveState();

  // Those that this rank can ever have: moments come with a parameter's first step.
  const std::vector<StatePart>& parts() const { return parts_; }
  // Where a part is now; null while it does not exist, or is empty. Error(usage) while it is on the move.
  const void* memory(size_t part) const;
  // Ranks that hold different elements.
  int shards() const { return shards_; }

  // `memory`: of each part. Any thread; not while the optimizer is being made anew.
  LiveCheckpoint checkpoint(const StateValues& values, std::span<const void* const> memory) const;

 private:
  struct Described;
  class Builder;

  TrainingState& state_;
  const int rank_, ranks_, shards_;
  std::vector<Described> parameters_;   // in the model's order
  std::vector<StatePart> parts_;
};

}  // namespace fsdpctl::train
