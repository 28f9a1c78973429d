// The learning rate over the steps of a run: constant, linear or cosine, each with a warm-up. Steps that were skipped are
// none. A value; not thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdpctl::train {

struct LrScheduleOptions {
  enum class Kind : uint8_t { constant, linear, cosine } kind = Kind::constant;
  uint64_t warmup_steps = 0;   // the first ones: from lr / warmup_steps up to lr
  uint64_t total_steps = 0;    // linear and cosine: min_lr is reached after so many, and kept
  double min_lr = 0;           // linear and cosine; a group whose lr is lower keeps its own
};
std::string_view schedule_name(LrScheduleOptions::Kind kind);

class LrSchedule {
 public:
  // Error(usage) names the option that is impossible.
  explicit LrSchedule(const LrScheduleOptions& options);

  const LrScheduleOptions& options() const { return options_; }
  uint64_t taken() const { return taken_; }   // steps
  double lr(double base) const;               // of the next step, for a group whose lr is `base`
  void advance() { ++taken_; }
  void restore(uint64_t taken) { taken_ = taken; }

 private:
  LrScheduleOptions options_;
  uint64_t taken_ = 0;
};

}  // namespace fsdpctl::train
