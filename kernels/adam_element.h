// Adam and AdamW for one element, as torch 2.13's single-tensor implementations compute it. Shared by CPU and GPU. One
// formula: AdamW has l2 = 0, Adam has decay = 1, and both are then without effect.
#pragma once

#include "kernels/table.h"

namespace fsdpctl::kernels {

FSDPCTL_SHARED void adam_element(const AdamScalars& s, float gradient, float& master, float& moment1, float& moment2) {
  float g = gradient * s.gradient_factor;
  if (s.l2 != 0.0f) g = fused(s.l2, master, g);
  const float w = master * s.decay;
  const float m = fused(s.one_minus_beta1, g - moment1, moment1);
  const float v = fused(s.one_minus_beta2 * g, g, moment2 * s.beta2);
  const float denominator = square_root(v) / s.root_correction2 + s.eps;
  master = w + (s.negative_step_size * m) / denominator;
  moment1 = m;
  moment2 = v;
}

}  // namespace fsdpctl::kernels
