#include "lib/train/models/layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>

#include <cmath>

namespace fsdpctl::train {

Linear::Linear(int64_t inputs, int64_t outputs, bool bias, std::optional<Initial> initial) : Module("Linear") {
  const Initial usual{Initial::uniform, 1 / std::sqrt(static_cast<double>(inputs))};
  weight_ = add_parameter("weight", {outputs, inputs}, initial.value_or(usual));
  if (bias) bias_ = add_parameter("bias", {outputs}, initial ? Initial{} : usual);
}

Linear::Linear(ParameterSlot weight) : Module("Linear"), weight_(weight) { tie_parameter("weight", std::move(weight)); }

Tensors Linear::forward(const Tensors& inputs) {
  return {at::linear(inputs[0], weight_->value, bias_ != nullptr ? std::optional(bias_->value) : std::nullopt)};
}

Embedding::Embedding(int64_t rows, int64_t columns, Initial initial, int64_t padding)
    : Module("Embedding"), weight_(add_parameter("weight", {rows, columns}, initial)), padding_(padding) {}

Tensors Embedding::forward(const Tensors& inputs) { return {at::embedding(weight_->value, inputs[0], padding_)}; }

RmsNorm::RmsNorm(int64_t size, double eps)
    : Module("LlamaRMSNorm"), weight_(add_parameter("weight", {size}, {Initial::ones, 0})), eps_(eps) {}

Tensors RmsNorm::forward(const Tensors& inputs) {
  const at::Tensor x = inputs[0].to(at::kFloat);
  const at::Tensor variance = x.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normalised = x * at::rsqrt(variance + eps_);
  return {weight_->value * normalised.to(inputs[0].scalar_type())};
}

Tensors Dropout::forward(const Tensors& inputs) {
  const MicroBatch& at_work = micro_batch();
  if (!at_work.training || p_ == 0) return {inputs[0]};
  const uint64_t seed = derived_seed(at_work.seed, fqn(), at_work.step, at_work.index);
  at::Tensor mask = at::empty_like(inputs[0]);
  mask.bernoulli_(1 - p_, at::make_generator<at::CPUGeneratorImpl>(seed)).div_(1 - p_);
  return {inputs[0] * mask};
}

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}), labels.reshape({-1}));
}

}  // namespace fsdpctl::train
