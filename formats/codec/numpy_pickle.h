// numpy's scalars and arrays as pickles hold them, to and from Values.
//
// Booleans, numbers and fixed-size strings become numpy_scalar and numpy_array; structured, object and time types
// keep the form of inert objects. Pure functions, thread-safe.
#pragma once

#include <span>

#include "lib/base/value.h"

namespace fsdpctl {

// scalar(dtype, bytes). False where the dtype has no Value of its own; Error(damaged) where the bytes do not fit it.
bool read_numpy_scalar(std::span<const Value> args, Value& result);
// _frombuffer(bytes, dtype, shape, order), protocol 5's form of an array. As above.
bool read_numpy_buffer(std::span<const Value> args, Value& result);
// The state that BUILD gives to what _reconstruct made. As above.
bool read_numpy_state(const Value& state, Value& result);

// A numpy_scalar or numpy_array as the inert object that Python would pickle.
Value numpy_object(const Value& scalar_or_array);

}  // namespace fsdpctl
