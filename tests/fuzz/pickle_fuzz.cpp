// Any bytes: the reader refuses them or gives a value, and what it gives can be written and read back equal.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/pickle_reader.h"
#include "formats/codec/pickle_writer.h"

namespace fsdpctl {
namespace {

// Storages are leaves; the states of DCP's classes are folded into tokens unless the value is to be written.
class Handler : public PickleHandler, public TensorEmitter {
 public:
  explicit Handler(bool folds) : folds_(folds) {}

  uint32_t know(std::string_view module, std::string_view) override {
    return folds_ && module.starts_with("torch.distributed.checkpoint") ? 1 : 0;
  }
  Value persistent(const Value& id) override {
    ids_.push_back(id);
    return Value::storage(static_cast<TensorIndex>(ids_.size() - 1), "storage");
  }
  bool call(const PickleCall& call, Value& result) override {
    if (call.id != 1) return false;
    kept_.insert(kept_.end(), call.args.begin(), call.args.end());
    result = Value::token(1, static_cast<uint32_t>(kept_.size()));
    return true;
  }
  bool build_fields(Value& object, std::span<const Value> fields) override {
    if (!object.is(Kind::token)) return false;
    kept_.insert(kept_.end(), fields.begin(), fields.end());
    return true;
  }
  bool build(Value& object, const Value& state) override {
    if (!object.is(Kind::token)) return false;
    kept_.push_back(state);
    return true;
  }
  void storage(TensorIndex index, std::string_view, PickleWriter& out) override {
    out.value(ids_[index]);
    out.op(pickle::kBinPersId);
  }

 private:
  bool folds_;
  std::vector<Value> ids_, kept_;
};

Value read(std::span<const std::byte> stream, Handler& handler, uint32_t depth) {
  FindingSink sink;
  PickleLimits limits;
  limits.depth = depth;
  limits.expanded = 20'000;
  return read_pickle(stream, handler, "fuzz", 0, sink, limits).value;
}

bool write(const Value& value, Handler& handler, std::string& bytes) {
  PickleWriter out(bytes, handler);
  try {
    out.begin();
    out.value(value);
    out.end();
    return true;
  } catch (const Error&) {
    return false;   // a name with a line break, for example
  }
}

void check(std::span<const std::byte> stream) {
  try {
    Handler folding(true);
    read(stream, folding, 100);
  } catch (const Error&) {
  }
  Handler handler(false);
  Value value;
  try {
    value = read(stream, handler, 100);
  } catch (const Error&) {
    return;
  }
  std::string bytes;
  if (!write(value, handler, bytes)) return;
  Handler again(false);
  Value back;
  try {
    back = read(std::as_bytes(std::span(bytes)), again, 1000);
  } catch (const Error& e) {
    std::fprintf(stderr, "what was written cannot be read: %s\n", e.what());
    std::abort();
  }
  // Storages are numbered by their order, which the writer may change; they are compared as they are written again.
  std::string twice;
  if (!write(back, again, twice) || twice != bytes) {
    std::fprintf(stderr, "what was written reads back differently\n");
    std::abort();
  }
}

}  // namespace
}  // namespace fsdpctl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdpctl::check(std::as_bytes(std::span(data, size)));
  return 0;
}
