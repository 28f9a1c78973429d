// The dynamic loss scale: Megatron's rule, as LightRFT's DynamicGradScaler has it. A value; not thread-safe.
//
// An overflow zeroes the growth counter and adds to the hysteresis counter; from the `hysteresis`-th on, each one multiplies
// the scale by the backoff factor. `growth_interval` steps in a row without one multiply it by the growth factor and zero
// both counters: nothing else refills the hysteresis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/dtype.h"

namespace fsdpctl::train {

struct GradScalerOptions {
  double initial_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  uint64_t growth_interval = 1000;
  double min_scale = 1, max_scale = 16777216;   // 0: no such bound
  uint64_t hysteresis = 2;
  DType dtype = DType::float16;                 // of the parameters: float16 needs factors that move the scale

  bool operator==(const GradScalerOptions&) const = default;
};

// For float16 the above; for others a scale of 1 that never moves, while the counters run.
GradScalerOptions default_scaler(DType dtype);

// What differs, a line for each: "growth_interval: 1000, 2000".
std::vector<std::string> differences(const GradScalerOptions& a, const GradScalerOptions& b);

class DynamicGradScaler {
 public:
  // Error(usage) names the option that is impossible.
  explicit DynamicGradScaler(const GradScalerOptions& options);

  const GradScalerOptions& options() const { return options_; }
  float scale() const { return scale_; }
  float inverse_scale() const;        // reciprocal in FP64, rounded once
  uint64_t growth_step() const { return growth_step_; }
  uint64_t hysteresis_step() const { return hysteresis_step_; }

  void update(bool overflow);

  // Error(damaged) for values that no scaler has.
  void restore(double scale, int64_t growth_step, int64_t hysteresis_step);

 private:
  GradScalerOptions options_;
  float scale_;
  uint64_t growth_step_ = 0, hysteresis_step_ = 0;
};

}  // namespace fsdpctl::train
