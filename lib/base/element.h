// Elements as numbers: one element of any dtype, decoded on the CPU. For reports (diff, NaN counts), not for
// moving data. Pure functions, thread-safe. Float8 layouts: OCP OFP8; float8_*fnuz as in torch 2.13.
#pragma once

#include <cstddef>
#include <utility>

#include "lib/base/dtype.h"

namespace fsdpctl {

enum class FloatClass : uint8_t { finite, infinite, nan };

// Dtypes with a numeric value of their own: floating, integer, boolean, complex; not bits, packed and quantised ones.
bool is_numeric(DType dtype);

// Value of one element (complex: real part, see element_parts). 64-bit integers are rounded.
double element_value(DType dtype, const std::byte* element);
// Real and imaginary part; imaginary is 0 for real types.
std::pair<double, double> element_parts(DType dtype, const std::byte* element);

FloatClass element_class(DType dtype, const std::byte* element);   // complex: the worse part

}  // namespace fsdpctl
