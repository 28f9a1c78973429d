#include "kernels/scalars.h"

#include <algorithm>
#include <cmath>

namespace fsdpctl::kernels {
namespace {

AdamScalars common(const AdamOptions& o, uint64_t step, float gradient_factor) {
  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
  AdamScalars s{};
  s.gradient_factor = gradient_factor;
  s.decay = 1;
  s.one_minus_beta1 = static_cast<float>(1 - o.beta1);
  s.beta2 = static_cast<float>(o.beta2);
  s.one_minus_beta2 = static_cast<float>(1 - o.beta2);
  s.negative_step_size = static_cast<float>(-(o.lr / correction1));
  s.root_correction2 = static_cast<float>(std::sqrt(correction2));
  s.eps = static_cast<float>(o.eps);
  return s;
}

}  // namespace

double clip_divisor(double scaled_norm, double loss_scale, double max_norm) {
  return max_norm > 0 ? std::max((scaled_norm / loss_scale + 1e-6) / max_norm, 1.0) : 1.0;
}

float gradient_factor(double clip, double loss_scale) { return static_cast<float>(1 / (clip * loss_scale)); }

AdamScalars adamw_scalars(const AdamOptions& options, uint64_t step, float gradient_factor) {
  AdamScalars s = common(options, step, gradient_factor);
  s.decay = static_cast<float>(1 - options.lr * options.weight_decay);
  return s;
}

AdamScalars adam_scalars(const AdamOptions& options, uint64_t step, float gradient_factor) {
  AdamScalars s = common(options, step, gradient_factor);
  s.l2 = static_cast<float>(options.weight_decay);
  return s;
}

SgdScalars sgd_scalars(const SgdOptions& options, bool first_step, float gradient_factor) {
  return {gradient_factor, static_cast<float>(options.weight_decay), static_cast<float>(options.momentum),
          static_cast<float>(-options.lr), first_step ? 1u : 0u};
}

}  // namespace fsdpctl::kernels
