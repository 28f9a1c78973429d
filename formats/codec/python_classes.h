// What the classes and functions that pickles name mean: the one table of known ones.
//
// Names are Python 3's, nested ones dotted ("Outer.Inner"). Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "lib/base/value.h"

namespace fsdpctl {

enum class PythonRole : uint8_t {
  foreign,        // of a module that is not Python's, torch's or numpy's: the user's own; inert
  unsafe,         // of Python itself and not in the table: refused as soon as it is named
  uncallable,     // of torch or numpy and not in the table, or a type that no pickler calls: refused when called
  data,           // a harmless class, or a function that only rebuilds one: an inert object without a warning
  constant,       // a torch constant: PythonName::kind
  // with a Value of their own
  ordered_dict, counter, default_dict, dict, list, tuple, set, frozenset, bytes, bytearray, complex,
  codecs_encode, size, device, layout, numpy_scalar, numpy_reconstruct, numpy_frombuffer,
  // machinery of pickle itself
  getattr, reconstructor, newobj, newobj_ex, type,
};

struct PythonName {
  PythonRole role = PythonRole::foreign;
  Kind kind = Kind::none;            // constant: dtype, memory_format or qscheme
};

PythonName classify_python_name(std::string_view module, std::string_view name);

struct QualifiedName {
  std::string_view module, name;
};
// Python 2's names and those of other protocols to Python 3's ("__builtin__ xrange" -> "builtins range") and back.
QualifiedName python3_name(std::string_view module, std::string_view name);
QualifiedName python2_name(std::string_view module, std::string_view name);

}  // namespace fsdpctl
