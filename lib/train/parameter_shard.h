// What the runtime and the optimizer know of each other: a parameter as this rank holds it, and the model as a list of
// those. The runtime implements it; optimizer tests do, too, without any model.
//
// Tensors given out are on the optimizer's device, contiguous, 1-D, float32, float16 or bfloat16, without autograd. Their
// storage is the runtime's and stays in place while the optimizer exists; gradients stay until they are cleared.
// Calls come from one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace fsdpctl::train {

// How a unit's parameters are cut: as FSDP1 or as FSDP2 does it. What is held of one parameter is a range of its
// row-major order with both.
enum class ShardPlacement : uint8_t {
  flat,            // a range of the unit's parameters laid end to end: neighbours in it lie side by side in memory
  per_parameter,   // Shard(0): rows of each parameter
};

struct ShardInfo {
  std::string fqn;                // of tied parameters the first name; they are one shard
  std::vector<int64_t> shape;     // of the whole parameter; [] for a single number
  uint64_t begin = 0, end = 0;    // elements of its row-major order that are here; equal where none are
  ShardPlacement placement = ShardPlacement::flat;
  // The same range is on `replicas` ranks (HSDP, NO_SHARD), and this is number `replica` of them. Number 0 stands for all
  // where something counts once: in the gradient norm, in a checkpoint.
  int replica = 0, replicas = 1;
  bool requires_grad = true;

  uint64_t count() const { return end - begin; }
};

// As state dicts show what is here: rows of the parameter where placement is per parameter, else flat.
std::vector<int64_t> local_shape(const ShardInfo& info);

class ParameterShard {
 public:
  virtual ~ParameterShard() = default;
  virtual const ShardInfo& info() const = 0;

  // What ranks gather: info().count() elements. The optimizer writes new values here. If float32, it is the master itself.
  virtual at::Tensor local() const = 0;

  // The master's first values where they are known better than local() has them: float32, as many elements. Asked for once,
  // when the optimizer is made. Undefined: local(), widened.
  virtual at::Tensor initial_master() const;

  // The reduced gradient, still multiplied by the loss scale; of other ranks' backward, too. Undefined counts as zeros.
  virtual at::Tensor gradient() const = 0;

  // Whether any backward on this rank gave this parameter a gradient since clear_gradient(). Ranks may differ.
  virtual bool has_gradient() const;   // whether gradient() is defined
  virtual void clear_gradient() = 0;
};

class ShardedModel {
 public:
  virtual ~ShardedModel() = default;

  // Every parameter, also those of which this rank holds nothing: the same names in the same order on all ranks.
  virtual std::span<ParameterShard* const> shards() = 0;

  // Backward from `loss` (float32, [1], multiplied by the loss scale); returns when gradients are as gradient() gives
  // them. A second one from the same loss needs `retain_graph` in the first, and throws before any change without.
  virtual void backward(const at::Tensor& loss, bool retain_graph);   // autograd's alone
};

}  // namespace fsdpctl::train
