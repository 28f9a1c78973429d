#include "formats/codec/torch_emitter.h"

#include <charconv>

#include "formats/codec/pickle_opcodes.h"
#include "formats/codec/torch_storage_class.h"

namespace fsdpctl {
namespace {

constexpr uint32_t kNoNumber = 0xFFFFFFFF;

std::string_view rebuild_function(DType dtype) {
  return typed_storage_name(dtype).empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2";
}

}  // namespace

TorchEmitter::TorchEmitter(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), number_(checkpoint.tensors.size(), kNoNumber) {}

// ('storage', class, key, location, numel), loaded by the reader. Tensors are saved for the CPU; readers move them.
void TorchEmitter::storage_id(TensorIndex tensor, std::string_view module, std::string_view name, uint64_t numel,
                              PickleWriter& out) {
  if (number_[tensor] == kNoNumber) {
    number_[tensor] = static_cast<uint32_t>(order_.size());
    order_.push_back(tensor);
  }
  out.mark();
  out.string("storage");
  out.global(module, name);
  char key[12];
  const auto end = std::to_chars(key, key + sizeof key, number_[tensor]).ptr;
  out.unique_string({key, static_cast<size_t>(end - key)});
  out.string("cpu");
  out.integer(static_cast<int64_t>(numel));
  out.op(pickle::kTuple);
  out.op(pickle::kBinPersId);
}

void TorchEmitter::no_hooks(PickleWriter& out) {
  out.global("collections", "OrderedDict");
  out.op(pickle::kEmptyTuple);
  out.op(pickle::kReduce);
}

// The arguments of _rebuild_tensor_v2 or _v3, as a tuple.
void TorchEmitter::arguments(TensorIndex tensor, bool requires_grad, PickleWriter& out) {
  const TensorInfo& info = checkpoint_.tensors[tensor];
  const std::string_view typed = typed_storage_name(info.dtype);
  const uint64_t elements = count(info.shape);
  out.mark();
  if (typed.empty()) storage_id(tensor, "torch.storage", "UntypedStorage", elements * item_size(info.dtype), out);
  else storage_id(tensor, "torch", typed, elements, out);
  out.integer(0);
  out.int_tuple(info.shape);
  strides_.resize(info.shape.size());
  row_major_strides(info.shape, strides_);
  out.int_tuple(strides_);
  out.boolean(requires_grad);
  no_hooks(out);
  if (typed.empty()) out.global("torch", dtype_name(info.dtype));
  out.op(pickle::kTuple);
}

void TorchEmitter::data(TensorIndex tensor, bool requires_grad, PickleWriter& out) {
  out.global("torch._utils", rebuild_function(checkpoint_.tensors[tensor].dtype));
  arguments(tensor, requires_grad, out);
  out.op(pickle::kReduce);
}

void TorchEmitter::tensor(const Value& leaf, PickleWriter& out) {
  const TensorLeaf t = leaf.as_tensor();
  const Value attributes = leaf.tensor_attributes();
  const bool has_attributes = !attributes.is(Kind::none);
  if (!t.parameter && !has_attributes) return data(t.index, t.requires_grad, out);
  if (!t.parameter) {   // (function, type, its arguments, attributes)
    out.global("torch._tensor", "_rebuild_from_type_v2");
    out.mark();
    out.global("torch._utils", rebuild_function(checkpoint_.tensors[t.index].dtype));
    out.global("torch", "Tensor");
    arguments(t.index, t.requires_grad, out);
  } else {              // (tensor, requires_grad, hooks [, attributes])
    out.global("torch._utils", has_attributes ? "_rebuild_parameter_with_state" : "_rebuild_parameter");
    out.mark();
    data(t.index, false, out);
    out.boolean(t.requires_grad);
    no_hooks(out);
  }
  if (has_attributes) out.value(attributes);
  out.op(pickle::kTuple);
  out.op(pickle::kReduce);
}

void TorchEmitter::storage(TensorIndex index, std::string_view class_name, PickleWriter& out) {
  const size_t dot = class_name.rfind('.');
  const std::string_view module = class_name.substr(0, dot), name = class_name.substr(dot + 1);
  const auto type = storage_class(module, name);
  if (!type) throw Error(Exit::refused, "storage has an unknown class").found_only(std::string(class_name));
  storage_id(index, module, name, count(checkpoint_.tensors[index].shape) / item_size(type->dtype), out);
}

}  // namespace fsdpctl
