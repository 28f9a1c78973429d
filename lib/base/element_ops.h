// Operations on every element of a block, in place: byte order, and what PyTorch postpones in views (negation,
// conjugation). No alignment is needed; sizes are whole elements. Pure, thread-safe.
#pragma once

#include <cstddef>
#include <span>

#include "lib/base/dtype.h"

namespace fsdpctl {

void swap_bytes(DType dtype, std::span<std::byte> elements);   // both halves of a complex number for themselves
void negate(DType dtype, std::span<std::byte> elements);       // floating and complex: signs; integers: two's complement
void conjugate(DType dtype, std::span<std::byte> elements);    // complex only; nothing for other dtypes

}  // namespace fsdpctl
