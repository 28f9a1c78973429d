#include "lib/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lib/base/finding.h"

namespace fsdpctl::train {

std::string_view schedule_name(LrScheduleOptions::Kind kind) {
  switch (kind) {
    case LrScheduleOptions::Kind::constant: return "constant";
    case LrScheduleOptions::Kind::linear: return "linear";
    case LrScheduleOptions::Kind::cosine: return "cosine";
  }
  return "";
}

LrSchedule::LrSchedule(const LrScheduleOptions& options) : options_(options) {
  const char* what = "impossible option of the learning rate schedule";
  if (!(options.min_lr >= 0) || !std::isfinite(options.min_lr)) {
    throw Error(Exit::usage, what).key("min_lr").saw("0 or more", std::to_string(options.min_lr));
  }
  if (options.kind != LrScheduleOptions::Kind::constant && options.total_steps <= options.warmup_steps) {
    throw Error(Exit::usage, what)
        .key("total_steps")
        .saw("more than the " + std::to_string(options.warmup_steps) + " of the warm-up", std::to_string(options.total_steps));
  }
}

double LrSchedule::lr(double base) const {
  if (taken_ < options_.warmup_steps) {
    return base * (static_cast<double>(taken_ + 1) / static_cast<double>(options_.warmup_steps));
  }
  if (options_.kind == LrScheduleOptions::Kind::constant) return base;
  const double length = static_cast<double>(options_.total_steps - options_.warmup_steps);
  const double progress = std::min(static_cast<double>(taken_ - options_.warmup_steps) / length, 1.0);
  const double lowest = std::min(options_.min_lr, base);
  const double left = options_.kind == LrScheduleOptions::Kind::linear
                          ? 1 - progress
                          : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return lowest + (base - lowest) * left;
}

}  // namespace fsdpctl::train
