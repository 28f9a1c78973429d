// How tensors and storages look in a pickle that torch.load reads: the inverse of TorchObjectHandler.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/codec/pickle_writer.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Numbers the storages in order of first appearance, which is the order that readers may rely on. Tensors are
// contiguous and fill their storage. Not thread-safe.
class TorchEmitter : public TensorEmitter {
 public:
  explicit TorchEmitter(const Checkpoint& checkpoint);
  void tensor(const Value& leaf, PickleWriter& out) override;
  void storage(TensorIndex index, std::string_view storage_class, PickleWriter& out) override;
  // Tensors by storage number.
  std::vector<TensorIndex> take_order() { return std::move(order_); }

 private:
  void storage_id(TensorIndex tensor, std::string_view module, std::string_view name, uint64_t numel, PickleWriter& out);
  void arguments(TensorIndex tensor, bool requires_grad, PickleWriter& out);
  void data(TensorIndex tensor, bool requires_grad, PickleWriter& out);
  void no_hooks(PickleWriter& out);

  const Checkpoint& checkpoint_;
  std::vector<uint32_t> number_;       // of each tensor's storage
  std::vector<TensorIndex> order_;
  std::vector<int64_t> strides_;       // scratch
};

}  // namespace fsdpctl
