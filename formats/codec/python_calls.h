// What calls of known Python classes and functions give, as Values. Nothing is executed: each is read as data.
#pragma once

#include <span>

#include "formats/codec/python_classes.h"
#include "lib/base/value.h"

namespace fsdpctl {

// For every role from `ordered_dict` to `numpy_frombuffer`. Sets `result`; false where the arguments are not those that Python
// pickles. Where the class is known but this value of it has no Kind (a structured numpy array), `result` stays none.
bool call_python(PythonRole role, std::span<const Value> args, bool newobj, Value& result);

}  // namespace fsdpctl
