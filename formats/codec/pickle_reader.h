// The pickle machine: reads any pickle (protocols 0-5) into a Value. Reading is never executing.
//
// Known classes and callables (formats/codec/python_classes.h) have a meaning; a class of a module that is not
// Python's, torch's or numpy's becomes an inert object; a callable of builtins, the standard library, torch or
// numpy that is not in the table is unsafe: Error(unsupported) with its name and offset. Malformed streams are
// Error(damaged) with the offset. Limits hold before memory is taken: string lengths against the bytes left,
// nesting, memo, node count, and the size of the tree once shared nodes are counted each time they are reached.
// Cycles are unsafe. Values that Python shares stay shared. Thread-safe: no global state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "lib/base/checksum.h"   // Bytes
#include "lib/base/finding.h"
#include "lib/base/value.h"

namespace fsdpctl {

struct PickleLimits {
  uint32_t depth = 1000;                // nesting of the finished tree and of open marks
  uint64_t nodes = 200'000'000;         // opcodes that make a value
  uint64_t expanded = 50'000'000;       // leaves of the tree, shared ones counted each time
};

// Decides what a stream's calls mean. The defaults handle plain Python, numpy and torch constants; torch tensors
// (formats/codec/torch_object.h) and `.metadata` (formats/dcp_metadata.h) add theirs.
class PickleHandler {
 public:
  virtual ~PickleHandler() = default;
  // BINPERSID / PERSID. Default: Error(unsupported).
  virtual Value persistent(const Value& id);
  // callable(*args) for REDUCE, or cls.__new__(*args) for NEWOBJ (kwargs: NEWOBJ_EX, else none), before the table of
  // known classes is asked. True: `result` is set. `callable` is a global or an object.
  virtual bool call(const Value& callable, const Value& args, bool newobj, Value& result);
  // BUILD on `object`. True: done (object may have been replaced). Called before the default, which gives an
  // ordered_dict its attributes and an inert object its state.
  virtual bool build(Value& object, Value& state);
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
