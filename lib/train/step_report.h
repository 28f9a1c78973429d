// What a run says of each step.
#pragma once

#include <cstdint>
#include <optional>

namespace fsdpctl::train {

// The same on every rank.
struct StepReport {
  uint64_t step = 0;              // steps done
  double loss = 0;                // the mean over the micro-batches of all ranks
  double grad_norm = 0;           // before clipping; infinite where the step was skipped
  double lr = 0;                  // of the first param group, in this step
  double loss_scale = 0;          // in this step
  bool skipped = false;           // some gradient was not finite: nothing was changed
  uint64_t tokens = 0;            // trained on so far
  double seconds = 0;             // of the step; saving and validation not included
  double tokens_per_second = 0;   // of all ranks
  uint64_t peak_memory = 0;       // the most resident bytes of a rank so far
  std::optional<double> validation_loss;
};

}  // namespace fsdpctl::train
