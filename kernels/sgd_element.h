// SGD with momentum for one element, as torch 2.13's single-tensor implementation computes it. Shared by CPU and GPU.
#pragma once

#include "kernels/table.h"

namespace fsdpctl::kernels {

// The scaled and decayed gradient: what the momentum accumulates.
FSDPCTL_SHARED float sgd_gradient(const SgdScalars& s, float gradient, float master) {
  const float g = gradient * s.gradient_factor;
  return s.weight_decay != 0.0f ? fused(s.weight_decay, master, g) : g;
}

FSDPCTL_SHARED void sgd_element(const SgdScalars& s, float gradient, float& master, float& momentum) {
  const float g = sgd_gradient(s, gradient, master);
  const float m = s.first_step != 0u ? g : momentum * s.momentum + g;
  master = fused(s.negative_lr, m, master);
  momentum = m;
}

FSDPCTL_SHARED void sgd_element_without_momentum(const SgdScalars& s, float gradient, float& master) {
  master = fused(s.negative_lr, sgd_gradient(s, gradient, master), master);
}

}  // namespace fsdpctl::kernels
