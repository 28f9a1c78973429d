// The layers that models are made of, under the names of PyTorch's and Hugging Face's classes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lib/train/models/module.h"

namespace fsdpctl::train {

class Linear : public Module {
 public:
  // Without `initial` as PyTorch begins: uniform within 1 / sqrt(inputs).
  Linear(int64_t inputs, int64_t outputs, bool bias, std::optional<Initial> initial = {});
  // Its weight is somebody else's: a head tied to an embedding.
  explicit Linear(ParameterSlot weight);
  Tensors forward(const Tensors& inputs) override;
  using Module::operator();

 private:
  ParameterSlot weight_, bias_;
};

class Embedding : public Module {
 public:
  // The gradient of row `padding` stays zero; -1: there is none.
  Embedding(int64_t rows, int64_t columns, Initial initial, int64_t padding = -1);
  Tensors forward(const Tensors& inputs) override;
  const ParameterSlot& weight() const { return weight_; }

 private:
  ParameterSlot weight_;
  int64_t padding_;
};

// Root mean square in FP32, whatever the dtype.
class RmsNorm : public Module {
 public:
  RmsNorm(int64_t size, double eps);
  Tensors forward(const Tensors& inputs) override;

 private:
  ParameterSlot weight_;
  double eps_;
};

// Zeroes elements with probability p in training, and scales the others. Which ones: a function of the micro-batch and of the
// module's name, so two calls in one forward of a model zero the same.
class Dropout : public Module {
 public:
  explicit Dropout(double p) : Module("Dropout"), p_(p) {}
  Tensors forward(const Tensors& inputs) override;

 private:
  double p_;
};

// Modules numbered from 0, for the sake of their names; has no forward.
class ModuleList : public Module {
 public:
  ModuleList() : Module("ModuleList") {}
  Module& add(std::unique_ptr<Module> module) { return add_child(std::to_string(children().size()), std::move(module)); }
  Tensors forward(const Tensors& inputs) override { return inputs; }
};

// Of logits [..., vocabulary] and next tokens [...] of the same length in a row: the mean of -log p in FP32. Tokens of
// -100 do not count.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdpctl::train
