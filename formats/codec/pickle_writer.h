// Writes a Value as a pickle of protocol 2, the way torch.save does, so that torch.load(weights_only=True)
// accepts it wherever its content allows. Nodes that a tree holds more than once are written once and fetched from the
// memo, so that Python's sharing is kept; short strings that repeat too. Nothing else costs a memo opcode.
//
// The same tree gives the same bytes. Error(refused) for what protocol 2 cannot hold, Error(unsupported) for trees
// nested deeper than any reader takes. Not thread-safe; writers are independent of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lib/base/value.h"

namespace fsdpctl {

class PickleWriter;

// Emits what a tensor or storage leaf looks like; torch archives supply it. Default: Error(refused).
class TensorEmitter {
 public:
  virtual ~TensorEmitter() = default;
  virtual void tensor(const Value& leaf, PickleWriter& out);    // Kind::tensor, perhaps with attributes
  virtual void storage(TensorIndex index, std::string_view storage_class, PickleWriter& out);
};

class PickleWriter {
 public:
  PickleWriter(std::string& out, TensorEmitter& emitter);
  void begin();                          // PROTO 2
  void end();                            // STOP
  // Any value. Sharing is kept within one outermost call; emitters may call it for parts of the same tree.
  void value(const Value& value);

  // Building blocks for emitters and for `.metadata`.
  void none();
  void boolean(bool v);
  void integer(int64_t v);
  void real(double v);
  void string(std::string_view utf8);    // memoised: a repeated string becomes a BINGET
  void unique_string(std::string_view utf8);                     // not memoised
  // Memoised; names are Python 3's and are written as protocol 2 wants them ("Outer.Inner" by getattr).
  void global(std::string_view module, std::string_view name);
  void mark();
  void op(uint8_t opcode);               // a bare opcode (pickle_opcodes.h): TUPLE, REDUCE, BUILD, ...
  void int_tuple(std::span<const int64_t> dims);
  uint32_t memo_put();                   // BINPUT of the top of the stack
  void memo_get(uint32_t id);

 private:
  struct State;
  class ValueWriter;
  template <class T> void number(T value) { out_->append(reinterpret_cast<const char*>(&value), sizeof value); }
  std::string* out_;
  std::shared_ptr<State> state_;
};

}  // namespace fsdpctl
