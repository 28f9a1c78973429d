// Writes a Value as a pickle of protocol 2, the way torch.save does, so that torch.load(weights_only=True)
// accepts it wherever its content allows. Shared nodes that Python could tell apart from copies (mutable
// containers, objects) are written once and fetched from the memo; strings longer than a few bytes too.
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
  void value(const Value& value);        // any value, memoised as above

  // Building blocks for emitters and for `.metadata`.
  void none();
  void boolean(bool v);
  void integer(int64_t v);
  void real(double v);
  void string(std::string_view utf8);    // memoised: repeated strings become a BINGET
  void global(std::string_view module, std::string_view name);   // memoised; names as protocol 2 wants them
  void mark();
  void op(uint8_t opcode);               // a bare opcode: TUPLE, REDUCE, BUILD, ...
  void int_tuple(std::span<const int64_t> dims);
  uint32_t memo_put();                   // BINPUT of the top of the stack
  void memo_get(uint32_t id);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace fsdpctl
