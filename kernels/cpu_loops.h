// The bodies of CpuLoops, included once by each cpu_<level>.cpp, which is compiled for its instruction set. All of it has
// internal linkage (see number.h). Loops run over blocks that stay in the first-level cache, through FP32, and are free of
// branches so that the compiler makes vectors of them.
#pragma once

#include "kernels/adam_element.h"
#include "kernels/cast_element.h"
#include "kernels/cpu_level.h"
#include "kernels/cpu_norm.h"
#include "kernels/cpu_vector.h"
#include "kernels/sgd_element.h"

namespace fsdpctl::kernels {
namespace {

constexpr size_t kBlock = 1024;

size_t size_of(FloatType type) { return type == FloatType::float32 ? 4 : 2; }
size_t least(size_t a, size_t b) { return a < b ? a : b; }

// ---- between memory and blocks of FP32

template <class Widen>
void widen_all(const unsigned char* in, size_t stride, float* __restrict out, size_t n, Widen widen) {
  const auto from = [&](size_t step) __attribute__((always_inline)) {
    for (size_t i = 0; i < n; ++i) {
      uint16_t half;
      __builtin_memcpy(&half, in + 2 * i * step, 2);
      out[i] = widen(half);
    }
  };
  stride == 1 ? from(1) : from(stride);   // the first makes vectors
}

void load(const unsigned char* in, FloatType type, size_t stride, float* __restrict out, size_t n) {
  if (type == FloatType::float16) return widen_all(in, stride, out, n, [](uint16_t half) { return widen_float16(half); });
  if (type == FloatType::bfloat16) return widen_all(in, stride, out, n, [](uint16_t half) { return widen_bfloat16(half); });
  if (stride == 1) {
    __builtin_memcpy(out, in, 4 * n);
    return;
  }
  for (size_t i = 0; i < n; ++i) __builtin_memcpy(out + i, in + 4 * i * stride, 4);
}

// Elements [begin, begin + n) as FP32: where they are, or widened into `block`.
const float* floats(const void* tensor, FloatType type, size_t begin, size_t n, float* block) {
  if (type == FloatType::float32) return static_cast<const float*>(tensor) + begin;
  load(static_cast<const unsigned char*>(tensor) + 2 * begin, type, 1, block, n);
  return block;
}

void store(const float* in, unsigned char* out, FloatType type, size_t n) {
  switch (type) {
    case FloatType::float16: return narrow_to_float16(in, out, n);
    case FloatType::bfloat16: return narrow_to_bfloat16(in, out, n);
    case FloatType::float32: __builtin_memcpy(out, in, 4 * n); return;
  }
}

// At most kBlock elements.
void store(const float* in, unsigned char* out, FloatType type, size_t n, bool stream) {
  if (!stream) return store(in, out, type, n);
  unsigned char block[kBlock * sizeof(float)];
  store(in, block, type, n);
  stream_out(block, out, n * size_of(type));
}

// Elements as they are: by way of FP32, a signalling NaN would become quiet.
void move_strided(const unsigned char* in, size_t in_stride, unsigned char* out, size_t out_stride, size_t size, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (size == 4) {
      __builtin_memcpy(out + 4 * i * out_stride, in + 4 * i * in_stride, 4);
    } else {
      __builtin_memcpy(out + 2 * i * out_stride, in + 2 * i * in_stride, 2);
    }
  }
}

// ---- cast and restore

template <class Flags>
void count_all(const float* __restrict in, const uint16_t* __restrict out, size_t n, CastCounts& counts, Flags flags_of) {
  uint32_t overflowed = 0, underflowed = 0;
  for (size_t i = 0; i < n; ++i) {
    const CastFlags flags = flags_of(in[i], out[i]);
    overflowed += flags.overflowed;
    underflowed += flags.underflowed;
  }
  counts.overflowed += overflowed;
  counts.underflowed += underflowed;
}

void count(const float* in, FloatType type, size_t n, CastCounts& counts) {
  uint16_t out[kBlock];
  store(in, reinterpret_cast<unsigned char*>(out), type, n);
  if (type == FloatType::float16) {
    count_all(in, out, n, counts, [](float value, uint16_t result) { return float16_flags(value, result); });
  } else {
    count_all(in, out, n, counts, [](float value, uint16_t result) { return bfloat16_flags(value, result); });
  }
}

void cast_strided(const void* in, FloatType in_type, size_t in_stride, void* out, FloatType out_type, size_t out_stride,
                  size_t n, bool stream, CastCounts* counts) {
  const auto* from = static_cast<const unsigned char*>(in);
  auto* to = static_cast<unsigned char*>(out);
  const size_t in_size = size_of(in_type), out_size = size_of(out_type);
  if (in_type == out_type) return move_strided(from, in_stride, to, out_stride, in_size, n);
  float block[kBlock];
  unsigned char narrow[kBlock * sizeof(float)];
  for (size_t done = 0; done < n; done += kBlock) {
    const size_t size = least(kBlock, n - done);
    load(from + done * in_stride * in_size, in_type, in_stride, block, size);
    if (out_stride == 1) {
      store(block, to + done * out_size, out_type, size, stream);
    } else {
      store(block, narrow, out_type, size);
      move_strided(narrow, 1, to + done * out_stride * out_size, out_stride, out_size, size);
    }
    if (counts != nullptr && out_type != FloatType::float32) count(block, out_type, size, *counts);
  }
}

void cast(const void* in, FloatType in_type, void* out, FloatType out_type, size_t n, bool stream, CastCounts* counts) {
  if (in_type == out_type) {
    __builtin_memcpy(out, in, n * size_of(in_type));
  } else {
    cast_strided(in, in_type, 1, out, out_type, 1, n, stream, counts);
  }
  finish_streaming();
}

// ---- optimizers

void adam_block(const float* __restrict g, float* __restrict w, float* __restrict m, float* __restrict v,
                const AdamScalars scalars, size_t n) {
  for (size_t i = 0; i < n; ++i) adam_element(scalars, g[i], w[i], m[i], v[i]);
}

void adam(const AdamEntry& tensor, size_t begin, size_t end, bool stream, const AdamScalars& scalars) {
  float block[kBlock];
  auto* parameter = static_cast<unsigned char*>(tensor.parameter);
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t n = least(kBlock, end - at);
    const float* g = floats(tensor.gradient, tensor.gradient_type, at, n, block);
    adam_block(g, tensor.master + at, tensor.moment1 + at, tensor.moment2 + at, scalars, n);
    if (parameter != nullptr) {
      store(tensor.master + at, parameter + at * size_of(tensor.parameter_type), tensor.parameter_type, n, stream);
    }
  }
  finish_streaming();
}

void sgd_block(const float* __restrict g, float* __restrict w, float* __restrict m, const SgdScalars scalars, size_t n) {
  if (scalars.momentum == 0.0f) {
    for (size_t i = 0; i < n; ++i) sgd_element_without_momentum(scalars, g[i], w[i]);
  } else {
    for (size_t i = 0; i < n; ++i) sgd_element(scalars, g[i], w[i], m[i]);
  }
}

void sgd(const SgdEntry& tensor, size_t begin, size_t end, bool stream, const SgdScalars& scalars) {
  float block[kBlock];
  auto* parameter = static_cast<unsigned char*>(tensor.parameter);
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t n = least(kBlock, end - at);
    const float* g = floats(tensor.gradient, tensor.gradient_type, at, n, block);
    sgd_block(g, tensor.master + at, tensor.momentum != nullptr ? tensor.momentum + at : nullptr, scalars, n);
    if (parameter != nullptr) {
      store(tensor.master + at, parameter + at * size_of(tensor.parameter_type), tensor.parameter_type, n, stream);
    }
  }
  finish_streaming();
}

// ---- unscale and norm

void unscale_norm(const GradientEntry& tensor, size_t begin, size_t end, float inverse_scale, bool stream, GradientNorm& result) {
  const bool in_place = tensor.unscaled == tensor.gradient;
  const Unscaled unscaled{tensor.unscaled != nullptr ? tensor.unscaled + begin : nullptr, inverse_scale, stream && !in_place};
  const auto* halves = static_cast<const uint16_t*>(tensor.gradient);
  switch (tensor.type) {
    case FloatType::float32:
      add_range<FloatType::float32>(static_cast<const float*>(tensor.gradient) + begin, end - begin, unscaled, result);
      break;
    case FloatType::float16: add_range<FloatType::float16>(halves + begin, end - begin, unscaled, result); break;
    case FloatType::bfloat16: add_range<FloatType::bfloat16>(halves + begin, end - begin, unscaled, result); break;
  }
  finish_streaming();
}

}  // namespace
}  // namespace fsdpctl::kernels
