#include "lib/train/grad_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

void require(bool holds, const char* option, double value, const char* expected) {
  if (holds) return;
  throw Error(Exit::usage, "impossible option of the loss scaler")
      .key(option)
      .saw(expected, fmt::format("{}", value));
}

bool is_scale(double value) { return value > 0 && std::isfinite(static_cast<float>(value)); }

}  // namespace

GradScalerOptions default_scaler(DType dtype) {
  GradScalerOptions options;
  options.dtype = dtype;
  if (dtype != DType::float16) {
    options.initial_scale = options.growth_factor = options.backoff_factor = options.max_scale = 1;
  }
  return options;
}

std::vector<std::string> differences(const GradScalerOptions& a, const GradScalerOptions& b) {
  std::vector<std::string> lines;
  const auto compare = [&](const char* name, auto x, auto y) {
    if (x != y) lines.push_back(fmt::format("{}: {}, {}", name, x, y));
  };
  compare("initial_scale", a.initial_scale, b.initial_scale);
  compare("growth_factor", a.growth_factor, b.growth_factor);
  compare("backoff_factor", a.backoff_factor, b.backoff_factor);
  compare("growth_interval", a.growth_interval, b.growth_interval);
  compare("min_scale", a.min_scale, b.min_scale);
  compare("max_scale", a.max_scale, b.max_scale);
  compare("hysteresis", a.hysteresis, b.hysteresis);
  compare("dtype", dtype_name(a.dtype), dtype_name(b.dtype));
  return lines;
}

DynamicGradScaler::DynamicGradScaler(const GradScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.initial_scale)) {
  const bool moves = options.dtype == DType::float16;
  require(is_scale(options.initial_scale), "initial_scale", options.initial_scale, "a positive float32");
  require(moves ? options.growth_factor > 1 : options.growth_factor >= 1, "growth_factor", options.growth_factor,
          moves ? "more than 1" : "at least 1");
  require(std::isfinite(options.growth_factor), "growth_factor", options.growth_factor, "a finite number");
  require(options.backoff_factor > 0 && (moves ? options.backoff_factor < 1 : options.backoff_factor <= 1),
          "backoff_factor", options.backoff_factor, moves ? "between 0 and 1" : "more than 0, at most 1");
  require(options.growth_interval > 0, "growth_interval", 0, "at least 1");
  require(options.min_scale == 0 || is_scale(options.min_scale), "min_scale", options.min_scale, "a positive float32, or 0");
  require(options.max_scale == 0 || is_scale(options.max_scale), "max_scale", options.max_scale, "a positive float32, or 0");
  require(options.initial_scale >= options.min_scale, "initial_scale", options.initial_scale, "at least min_scale");
  require(options.max_scale == 0 || options.initial_scale <= options.max_scale, "initial_scale", options.initial_scale,
          "at most max_scale");
}

float DynamicGradScaler::inverse_scale() const { return static_cast<float>(1 / static_cast<double>(scale_)); }

void DynamicGradScaler::update(bool overflow) {
  if (overflow) {
    growth_step_ = 0;
    if (++hysteresis_step_ < options_.hysteresis) return;
    const float backed_off = scale_ * static_cast<float>(options_.backoff_factor);
    // Without a lower bound, a scale of 0 would still be the end of training.
    if (backed_off > 0) scale_ = std::max(backed_off, static_cast<float>(options_.min_scale));
    return;
  }
  if (++growth_step_ < options_.growth_interval) return;
  growth_step_ = hysteresis_step_ = 0;
  const float grown = scale_ * static_cast<float>(options_.growth_factor);
  if (!std::isfinite(grown)) return;
  scale_ = options_.max_scale > 0 ? std::min(grown, static_cast<float>(options_.max_scale)) : grown;
}

void DynamicGradScaler::restore(double scale, int64_t growth_step, int64_t hysteresis_step) {
  if (!is_scale(scale) || static_cast<double>(static_cast<float>(scale)) != scale) {
    throw Error(Exit::damaged, "impossible state of the loss scaler")
        .key("_scale")
        .saw("a positive float32", fmt::format("{}", scale));
  }
  if (growth_step < 0 || hysteresis_step < 0) {
    throw Error(Exit::damaged, "impossible state of the loss scaler")
        .key(growth_step < 0 ? "_growth_step" : "_hysteresis_step")
        .saw("0 or more", fmt::format("{}", std::min(growth_step, hysteresis_step)));
  }
  scale_ = static_cast<float>(scale);
  growth_step_ = static_cast<uint64_t>(growth_step);
  hysteresis_step_ = static_cast<uint64_t>(hysteresis_step);
}

}  // namespace fsdpctl::train
