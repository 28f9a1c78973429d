// Vectors of 32 bytes, and the few operations on them that compilers do not find by themselves: conversions, and stores that go
// past the caches. For output that is too large to be read again from there, those spare the reading of lines that are
// overwritten. Each has a portable form with the same result. Internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/number.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fsdpctl::kernels {
namespace {

using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));
using Halves = uint16_t __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));
using Integers = int64_t __attribute__((vector_size(32)));

// ---- conversions: eight elements of finite value

FSDPCTL_SHARED void load(const float* x, Floats& out) { __builtin_memcpy(&out, x, sizeof out); }

FSDPCTL_SHARED void load_words(const uint16_t* x, Words& out) {
  Halves halves;
  __builtin_memcpy(&halves, x, sizeof halves);
#if defined(__AVX2__)
  out = __builtin_bit_cast(Words, _mm256_cvtepu16_epi32(__builtin_bit_cast(__m128i, halves)));
#else
  out = __builtin_convertvector(halves, Words);
#endif
}

FSDPCTL_SHARED void load_bfloat16(const uint16_t* x, Floats& out) {
  Words words;
  load_words(x, words);
  out = __builtin_bit_cast(Floats, words << 16);
}

FSDPCTL_SHARED void load_float16(const uint16_t* x, Floats& out) {
#if defined(__F16C__)
  __m128i halves;
  __builtin_memcpy(&halves, x, sizeof halves);
  out = __builtin_bit_cast(Floats, _mm256_cvtph_ps(halves));
#else
  Words words;
  load_words(x, words);
  const Words magnitude = (words & 0x7FFFu) << 13;
  const Floats scaled = __builtin_bit_cast(Floats, magnitude) * 0x1p112f;   // as widen_float16 does
  out = __builtin_bit_cast(Floats, __builtin_bit_cast(Words, scaled) | ((words & 0x8000u) << 16));
#endif
}

FSDPCTL_SHARED void to_doubles(const Floats& eight, Doubles& low, Doubles& high) {
#if defined(__AVX2__)
  const auto all = __builtin_bit_cast(__m256, eight);
  low = __builtin_bit_cast(Doubles, _mm256_cvtps_pd(_mm256_castps256_ps128(all)));
  high = __builtin_bit_cast(Doubles, _mm256_cvtps_pd(_mm256_extractf128_ps(all, 1)));
#else
  low = __builtin_convertvector(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), Doubles);
  high = __builtin_convertvector(__builtin_shufflevector(eight, eight, 4, 5, 6, 7), Doubles);
#endif
}

// n elements, NaNs as narrow_float16 makes them.
void narrow_to_float16(const float* in, unsigned char* out, size_t n) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __builtin_memcpy(out + 2 * i, &halves, sizeof halves);
  }
#endif
  for (; i < n; ++i) {
    const uint16_t half = narrow_float16(in[i]);
    __builtin_memcpy(out + 2 * i, &half, 2);
  }
}

// n elements, as narrow_bfloat16 makes them.
void narrow_to_bfloat16(const float* in, unsigned char* out, size_t n) {
  size_t i = 0;
#if defined(__AVX2__)
  const auto rounded = [](const float* x, __m256i& upper) __attribute__((always_inline)) {
    Words bits;
    __builtin_memcpy(&bits, x, sizeof bits);
    const Words nearest = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x40u;
    upper = __builtin_bit_cast(__m256i, (bits & kMagnitude) > kInfinity ? quiet : nearest);
  };
  for (; i + 16 <= n; i += 16) {
    __m256i first, second;
    rounded(in + i, first);
    rounded(in + i + 8, second);
    // Packs within 16 bytes, so the middle quarters change places.
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xD8);
    __builtin_memcpy(out + 2 * i, &packed, sizeof packed);
  }
#endif
  for (; i < n; ++i) {
    const uint16_t half = narrow_bfloat16(in[i]);
    __builtin_memcpy(out + 2 * i, &half, 2);
  }
}

// ---- stores past the caches

template <bool kStream>
FSDPCTL_SHARED void store(float* to, const Floats& eight) {
#if defined(__AVX2__)
  if (kStream && reinterpret_cast<uintptr_t>(to) % 32 == 0) {
    _mm256_stream_ps(to, __builtin_bit_cast(__m256, eight));
    return;
  }
#endif
  __builtin_memcpy(to, &eight, sizeof eight);
}

// Copies a block that lies in the first-level cache.
void stream_out(const void* from, void* to, size_t bytes) {
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = static_cast<unsigned char*>(to);
#if defined(__AVX2__)
  const size_t head = (0 - reinterpret_cast<uintptr_t>(to)) % 32;
  if (bytes > head + 32) {
    __builtin_memcpy(target, source, head);
    size_t at = head;
    for (; at + 32 <= bytes; at += 32) {
      const __m256i chunk = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), chunk);
    }
    source += at;
    target += at;
    bytes -= at;
  }
#endif
  __builtin_memcpy(target, source, bytes);
}

// Other threads see what was streamed only after this.
void finish_streaming() {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace fsdpctl::kernels
