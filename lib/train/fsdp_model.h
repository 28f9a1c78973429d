// A model whose parameters are sharded over ranks: PyTorch's FSDP on modules of ours.
//
// The modules that the policy names become units, and the root one for the rest. A unit gathers its parameters before it
// computes and releases them after; each rank keeps its shard. The root's stay from forward to backward, as in FSDP2: other units
// run within it both times. Which form shards have (`placement`) changes nothing else.
//
// All ranks call the same functions in the same order with the same units used; the communicator finds out where they do
// not. One thread at a time. Tensors that forward() returned, and their graphs, must be gone before the model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/train/runtime.h"
#include "lib/train/unit.h"

namespace fsdpctl::train {

// What a module becomes: a unit with these settings, or part of the one around it. Not asked about the root.
using WrapPolicy = std::function<std::optional<UnitSettings>(const Module& module)>;
WrapPolicy wrap_kinds(std::vector<std::string> kinds, UnitSettings settings);   // Module::kind()

struct FsdpOptions {
  ShardPlacement placement = ShardPlacement::flat;
  UnitSettings root;                 // of the root unit
  WrapPolicy policy;                 // empty: the root is the only unit
  bool offload_parameters = false;   // shards and their gradients live in pinned host memory
  // While a unit computes, the next one's parameters are gathered. With offload the shard of the one after that is on its way to the
  // device, too, so that the gathering need not wait for it: at most two units are gathered, and the shards of two are there.
  bool prefetch = true;
};

class FsdpModel final : public ShardedModel {
 public:
  // Values are zeros until initialize() or set_values(); no rank ever holds more than its shards and the units in use.
  // Error(usage) where tied parameters are in different units.
  FsdpModel(std::unique_ptr<Module> root, const Mesh& mesh, const FsdpOptions& options, Device& device);
  ~FsdpModel() override;

  void initialize(uint64_t seed);                     // each parameter's Initial
  void set_values(const ParameterValues& values);

  // With autograd's grad mode on, what comes out can be given to backward().
  Tensors forward(const Tensors& inputs, const MicroBatch& micro_batch = {});

  // Adds to the gradients. `loss` has one element.
  void backward(const at::Tensor& loss, bool retain_graph = false) override;
  // Whether backward sums over ranks. Without, each rank keeps gradients of whole parameters until the next one that does.
  void set_synchronises(bool synchronises) { runtime_.synchronises = synchronises; }
  // One division of what backward summed, by the number of micro-batches of all ranks.
  void average_gradients(uint64_t micro_batches);

  std::span<ParameterShard* const> shards() override { return shard_pointers_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }   // in module order
  MemoryLedger& memory() { return memory_; }
  Module& root() { return *root_; }
  const Mesh& mesh() const { return runtime_.mesh; }

 private:
  class Shard;
  void make_units(const FsdpOptions& options);
  void make_shards();
  void cast_buffers(Module& module, const Precision& precision);
  void end_backward();
  void let_go();          // of what was kept for a backward that did not come
  void settle();          // nothing is gathered that nobody uses

  MemoryLedger memory_;
  Runtime runtime_;
  std::unique_ptr<Module> root_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<ParameterShard*> shard_pointers_;
};

}  // namespace fsdpctl::train
