// The scalars of an optimizer step: computed in FP64, as Python does, and rounded once.
#pragma once

#include <cstdint>

#include "kernels/table.h"

namespace fsdpctl::kernels {

// What the unscaled gradients must be divided by so that their norm is at most max_norm: at least 1. `scaled_norm` is the
// norm of the gradients as they are, times `loss_scale`. max_norm <= 0 means no clipping.
double clip_divisor(double scaled_norm, double loss_scale, double max_norm);

// What a gradient is multiplied by: 1 / (clip * loss_scale).
float gradient_factor(double clip, double loss_scale);

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};

// `step` counts from 1: the step that is being taken.
AdamScalars adamw_scalars(const AdamOptions& options, uint64_t step, float gradient_factor);
AdamScalars adam_scalars(const AdamOptions& options, uint64_t step, float gradient_factor);

struct SgdOptions {
  double lr = 1e-3, momentum = 0, weight_decay = 0;
};

SgdScalars sgd_scalars(const SgdOptions& options, bool first_step, float gradient_factor);

}  // namespace fsdpctl::kernels
