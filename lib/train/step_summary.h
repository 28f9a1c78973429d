// What ranks tell each other before a step, in one collective: the gradients' squares, whether all are finite, which
// parameters have a gradient at all, whether somebody wants to stop, and what went wrong on a rank before it came here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/exact_sum.h"
#include "lib/comm/communicator.h"

namespace fsdpctl::train {

struct StepSummary {
  kernels::ExactSum squares{};         // of this rank's gradients as they are, those that count once left out elsewhere
  uint64_t nonfinite = 0;              // infinities and NaNs among all of this rank's gradients
  std::vector<bool> has_gradient;      // a parameter each
  uint8_t stop = 0;                    // the signal that asks for the end; 0: none
  std::optional<Finding> failure;      // instead of the above
};

// All ranks': sums of squares (exact, so the same for any sharding) and of counts, the union of gradients, the highest
// signal. If a rank failed, every rank throws the failure of the lowest one, with its number.
StepSummary agree_on_step(Communicator& ranks, StepSummary mine);

}  // namespace fsdpctl::train
