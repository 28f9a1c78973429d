// Modules: a tree with names, parameters as slots that somebody else fills, and buffers. A light form of PyTorch's: no hooks,
// no state but this, and a forward of tensors to tensors.
//
// A module does not own its parameters' values: the runtime (sharded_model.h) puts tensors into the slots before forward is
// called and may take their memory away after. forward() must be a function of its inputs, parameters, buffers and
// micro_batch() alone, for it may be run a second time in backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/train/initial_value.h"
#include "lib/train/shard_layout.h"

namespace fsdpctl::train {

using Tensors = std::vector<at::Tensor>;

struct Parameter {
  Shape shape;
  Initial initial;
  bool trainable = true;
  at::Tensor value;       // the runtime's
};
using ParameterSlot = std::shared_ptr<Parameter>;   // one slot under several names: tied

struct Buffer {
  at::Tensor value;
  bool keep_dtype = false;   // no precision setting casts it
};

// Which micro-batch of training runs: what dropout depends on, so that neither the world size nor a second run matters.
struct MicroBatch {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t index = 0;      // among those of all ranks in this step
  bool training = false;   // dropout happens
};

class Module;

// What stands between a caller and a module's forward: a unit of the runtime.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual Tensors run(Module& module, const Tensors& inputs) = 0;
};

class Module {
 public:
  // `kind`: the name of PyTorch's class, which wrap policies speak of.
  explicit Module(std::string kind) : kind_(std::move(kind)) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  Tensors operator()(const Tensors& inputs) { return runner_ != nullptr ? runner_->run(*this, inputs) : forward(inputs); }
  at::Tensor operator()(const at::Tensor& input) { return (*this)(Tensors{input})[0]; }
  virtual Tensors forward(const Tensors& inputs) = 0;   // past the runner: for runners only

  const std::string& kind() const { return kind_; }
  const std::string& fqn() const { return fqn_; }   // from the root, "" for it; set by name_modules()
  const std::vector<std::pair<std::string, std::unique_ptr<Module>>>& children() const { return children_; }
  const std::vector<std::pair<std::string, ParameterSlot>>& parameters() const { return parameters_; }   // own ones
  std::vector<std::pair<std::string, Buffer>>& buffers() { return buffers_; }

  void set_runner(Runner* runner) { runner_ = runner; }
  void set_micro_batch(const MicroBatch* micro_batch) { micro_batch_ = micro_batch; }

 protected:
  ParameterSlot add_parameter(std::string name, Shape shape, Initial initial);
  void tie_parameter(std::string name, ParameterSlot slot) { parameters_.emplace_back(std::move(name), std::move(slot)); }
  size_t add_buffer(std::string name, Buffer buffer);   // its index in buffers()
  template <class M>
  M& add_child(std::string name, std::unique_ptr<M> child) {
    M& added = *child;
    children_.emplace_back(std::move(name), std::move(child));
    return added;
  }
  const MicroBatch& micro_batch() const;

 private:
  friend void name_modules(Module& root);
  const std::string kind_;
  std::string fqn_;
  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
  std::vector<std::pair<std::string, ParameterSlot>> parameters_;
  std::vector<std::pair<std::string, Buffer>> buffers_;
  Runner* runner_ = nullptr;
  const MicroBatch* micro_batch_ = nullptr;
};

// The module, then its children, in order.
void for_each_module(Module& root, const std::function<void(Module&)>& body);
void name_modules(Module& root);
std::string join_fqn(const std::string& module, const std::string& name);

// Every parameter once, in module order, under its first name; `aliases` are its other names.
struct NamedParameter {
  std::string fqn;
  std::vector<std::string> aliases;
  ParameterSlot slot;
};
std::vector<NamedParameter> named_parameters(Module& root);

}  // namespace fsdpctl::train
