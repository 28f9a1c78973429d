// The pickle machine: reads any pickle (protocols 0-5) into a Value. Reading is never executing.
//
// Known classes and callables (formats/codec/python_classes.h) have a meaning; a class of a module that is not
// Python's, torch's or numpy's becomes an inert object; a callable of builtins, the standard library, torch or
// numpy that is not in the table is unsafe: Error(unsupported) with its name and offset. Malformed streams are
// Error(damaged) with the offset. Limits hold before memory is taken: string lengths against the bytes left,
// nesting, memo, opcodes, and the size of the tree (values; text with the names above them) once shared nodes are
// counted each time they are reached.
// Cycles are unsafe. Values that Python shares stay shared. Thread-safe: no global state.
//
// What Python names and what stands for it here:
//   getattr(Outer, 'Inner')     a global "Outer.Inner", as protocol 4 writes nested classes and enum members
//   copyreg.__newobj__[_ex__]   the same object as NEWOBJ gives
//   a str of Python 2           a string where it is UTF-8, else bytes
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/checksum.h"   // Bytes
#include "lib/base/finding.h"
#include "lib/base/value.h"

namespace fsdpctl {

// What the trees of a checkpoint's pickles may grow by when shared values are written out, beyond what their streams'
// own lengths justify. One for all streams of a checkpoint, so that many small ones cannot do what a big one cannot.
struct SharingBudget {
  uint64_t values = 500'000;
  uint64_t text = uint64_t{64} << 20;   // bytes
};

struct PickleLimits {
  uint32_t depth = 1000;                // nesting of the finished tree and of open marks
  uint64_t opcodes = 200'000'000;
  uint64_t expanded = 50'000'000;       // values in the tree, shared ones counted each time
  SharingBudget* sharing = nullptr;     // is used up; null: the stream has one of its own
};

// callable(*args), or cls.__new__(cls, *args, **kwargs). Valid during the call; copy what is to be kept.
struct PickleCall {
  uint32_t id;                          // what know() said of the callable; 0 where it is no global
  const Value& callable;                // a global or an object
  std::span<const Value> args;
  const Value& kwargs;                  // dict (NEWOBJ_EX), else none
  bool newobj;
};

// Decides what a stream's calls mean. The defaults know plain Python, numpy and torch constants; torch tensors
// (formats/codec/torch_object.h) and `.metadata` (formats/dcp_metadata.h) add theirs.
//
// To keep big streams small a handler may fold what it recognises into rows of its own and answer with
// Value::token(type, row), type < 2^31: tokens cost nothing, and no stream can forge one. Errors that a handler throws
// get the file and the offset of the opcode.
class PickleHandler {
 public:
  virtual ~PickleHandler() = default;
  // Called once for each global that the stream names, before the table of known classes is asked (Python 2 names are
  // translated already; "Outer.Inner" for nested ones). Any number but 0 claims it: calls of it come to call() with that
  // number, and where it is an argument id_of() tells it.
  virtual uint32_t know(std::string_view module, std::string_view name);
  static uint32_t id_of(const Value& value);   // of a global; 0 for any other value
  // BINPERSID / PERSID. Default: Error(unsupported).
  virtual Value persistent(const Value& id);
  // REDUCE and NEWOBJ of a claimed global, and of any object that is called. True: `result` is set. False: the table decides.
  virtual bool call(const PickleCall& call, Value& result);
  // BUILD on `object`. True: done (object may have been replaced; copies that the memo holds are not). Asked before the
  // default, which gives an ordered_dict its attributes and an inert object its state. A state that is a dict comes as
  // its fields (key, value, key, value ...) first, and as a whole only where build_fields() said no.
  virtual bool build_fields(Value& object, std::span<const Value> fields);
  virtual bool build(Value& object, const Value& state);
};

struct PickleResult {
  Value value;
  size_t consumed = 0;                  // bytes up to and including STOP
  int protocol = 0;
};

// `name` is the file for messages, `base` is added to offsets in messages. Warnings (inert objects) go to `sink`
// once per class.
PickleResult read_pickle(Bytes stream, PickleHandler& handler, const std::string& name, uint64_t base,
                         FindingSink& sink, const PickleLimits& limits = {});

}  // namespace fsdpctl
