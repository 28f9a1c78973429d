// The tables that kernels work on: one row per tensor (or piece of one), thousands of rows in one launch. Plain data: the
// plug-in's ABI. Part of it, so never reorder.
//
// Pointers are host pointers for the CPU and pointers that the device can read for the GPU. They are aligned to their
// element, except a RestoreEntry's source. Memory that a row writes overlaps no other, of this row or of others; memory that is only
// read may be shared (one buffer of zeros is the gradient of many rows). A row of no elements may hold any pointers.
// Rows may mix types.
#pragma once

#include <cstdint>

#include "kernels/exact_sum.h"
#include "kernels/number.h"

namespace fsdpctl::kernels {

// target[i] = source[i], rounded to nearest even.
struct CastEntry {
  const void* source;
  void* target;
  uint64_t count;
  FloatType source_type;
  FloatType target_type;
};

struct CastCounts {
  uint64_t overflowed;    // finite values that became infinite
  uint64_t underflowed;   // non-zero values that became zero
};

// A box of up to four dimensions, cast on the way from a buffer of a checkpoint's bytes into sharded flat state. Strides
// count elements. restore.h makes entries from boxes of any number of dimensions.
inline constexpr int kRestoreDims = 4;
struct RestoreEntry {
  const void* source;   // of any alignment
  void* target;
  uint64_t size[kRestoreDims];             // the last one varies fastest; unused ones are 1, and come first
  uint64_t source_stride[kRestoreDims];
  uint64_t target_stride[kRestoreDims];
  FloatType source_type;
  FloatType target_type;
};

// Gradients as backward left them, multiplied by the loss scale.
struct GradientEntry {
  const void* gradient;
  float* unscaled;      // gradient * inverse scale, rounded once; null: not wanted. May be `gradient` itself if that is FP32.
  uint64_t count;
  FloatType type;
  uint32_t result;      // index of the GradientNorm that this tensor adds to: one for all, per group, per tensor
};

struct GradientNorm {
  ExactSum squares;     // of the finite elements as given, before unscaling; exact
  uint64_t nonfinite;   // number of infinities and NaNs: found-inf
};

// One step of Adam or AdamW for a tensor: adam_element.h has the formula, scalars.h makes the scalars.
struct AdamEntry {
  const void* gradient;
  float* master;
  float* moment1;
  float* moment2;
  void* parameter;      // receives the new master, cast; null: none
  uint64_t count;
  FloatType gradient_type;
  FloatType parameter_type;
  uint32_t scalars;     // index: tensors of several groups, or at several steps, share a launch
  uint32_t unused;
};

// In FP64 until here, each rounded once.
struct AdamScalars {
  float gradient_factor;     // 1 / (clip * scale)
  float l2;                  // Adam: weight decay as part of the gradient; 0 for AdamW
  float decay;               // AdamW: 1 - lr * weight decay; 1 for Adam
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float negative_step_size;  // -lr / (1 - beta1^step)
  float root_correction2;    // sqrt(1 - beta2^step)
  float eps;
};

struct SgdEntry {
  const void* gradient;
  float* master;
  float* momentum;      // null if SgdScalars::momentum is 0
  void* parameter;      // as in AdamEntry
  uint64_t count;
  FloatType gradient_type;
  FloatType parameter_type;
  uint32_t scalars;
  uint32_t unused;
};

struct SgdScalars {
  float gradient_factor;
  float weight_decay;
  float momentum;
  float negative_lr;
  uint32_t first_step;  // 1: the momentum buffer is set, not updated
};

struct CopyEntry {
  const void* source;
  void* target;
  uint64_t bytes;
};

}  // namespace fsdpctl::kernels
