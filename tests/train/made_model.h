// A model that is nothing but shards, made by the test: what the optimizer sees of a real one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/train/parameter_shard.h"

namespace fsdpctl::train {

// A tensor of these bits, and back. T is the element's size in memory: float, or uint16_t for the 16-bit dtypes.
template <class T>
at::Tensor tensor_of(at::ScalarType dtype, const std::vector<T>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, dtype);
  if (!values.empty()) std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
}
template <class T>
std::vector<T> values_of(const at::Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.numel()));
  if (!values.empty()) std::memcpy(values.data(), tensor.const_data_ptr(), values.size() * sizeof(T));
  return values;
}

struct MadeShard final : ParameterShard {
  ShardInfo description;
  at::Tensor values, first_master, grad;
  std::optional<bool> says_has_gradient;   // instead of whether `grad` is defined

  const ShardInfo& info() const override { return description; }
  at::Tensor local() const override { return values; }
  at::Tensor initial_master() const override { return first_master; }
  at::Tensor gradient() const override { return grad; }
  bool has_gradient() const override { return says_has_gradient.value_or(grad.defined()); }
  void clear_gradient() override { grad = at::Tensor(); }
};

class MadeModel final : public ShardedModel {
 public:
  std::span<ParameterShard* const> shards() override { return pointers_; }
  MadeShard& operator[](size_t i) { return *shards_[i]; }
  size_t size() const { return shards_.size(); }

  MadeShard& add(ShardInfo info, at::Tensor values) {
    shards_.push_back(std::make_unique<MadeShard>());
    shards_.back()->description = std::move(info);
    shards_.back()->values = std::move(values);
    pointers_.push_back(shards_.back().get());
    return *shards_.back();
  }

 private:
  std::vector<std::unique_ptr<MadeShard>> shards_;
  std::vector<ParameterShard*> pointers_;
};

// What rank `rank` of `world` holds of a parameter: equal flat parts (the last ones shorter), or rows.
inline ShardInfo cut(std::string fqn, std::vector<int64_t> shape, int rank, int world,
                     ShardPlacement placement = ShardPlacement::flat) {
  uint64_t total = 1;
  for (const int64_t size : shape) total *= static_cast<uint64_t>(size);
  const uint64_t row = placement == ShardPlacement::flat || shape.empty() || shape[0] == 0 ? 1 : total / static_cast<uint64_t>(shape[0]);
  const uint64_t rows = total / row, part = (rows + static_cast<uint64_t>(world) - 1) / static_cast<uint64_t>(world) * row;
  ShardInfo info;
  info.fqn = std::move(fqn);
  info.shape = std::move(shape);
  info.begin = std::min(total, part * static_cast<uint64_t>(rank));
  info.end = std::min(total, info.begin + part);
  info.placement = placement;
  return info;
}

// The elements of `whole` that a shard holds.
template <class T>
std::vector<T> part_of(const std::vector<T>& whole, const ShardInfo& info) {
  return std::vector<T>(whole.begin() + static_cast<std::ptrdiff_t>(info.begin), whole.begin() + static_cast<std::ptrdiff_t>(info.end));
}

}  // namespace fsdpctl::train
