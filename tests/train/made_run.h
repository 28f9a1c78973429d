// An optimizer on a rank over three made parameters, and the same gradients for every world size and placement.
#pragma once

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "lib/train/fsdp_optimizer.h"
#include "tests/comm/ranks.h"
#include "tests/train/made_model.h"

namespace fsdpctl::train {

struct Made {
  const char* fqn;
  std::vector<int64_t> shape;
  size_t count;
};
inline const std::vector<Made>& made_parameters() {
  static const std::vector<Made> all = {{"layer.weight", {7, 3}, 21}, {"layer.bias", {7}, 7}, {"head.weight", {5, 2}, 10}};
  return all;
}

// Numbers of many magnitudes, the same for the same seed.
inline std::vector<float> made_numbers(uint64_t seed, size_t count) {
  uint64_t state = 0x9E3779B97F4A7C15u * (seed + 1);
  std::vector<float> values(count);
  for (float& value : values) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    value = std::ldexp(static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)), -23 - static_cast<int>(state % 5));
  }
  return values;
}

inline at::Tensor made_tensor(at::ScalarType dtype, const std::vector<float>& values) {
  if (dtype == at::kFloat) return tensor_of(at::kFloat, values);
  const auto type = dtype == at::kHalf ? kernels::FloatType::float16 : kernels::FloatType::bfloat16;
  std::vector<uint16_t> narrow(values.size());
  const kernels::CastEntry entry{values.data(), narrow.data(), values.size(), kernels::FloatType::float32, type};
  kernels::cpu_kernels(1)->cast({&entry, 1}, {});
  return tensor_of(dtype, narrow);
}

// All three parameters in one group, in their order.
inline FSDPadaptOptions made_options(OptimizerKind kind = OptimizerKind::adamw) {
  FSDPadaptOptions options;
  options.optimizer.kind = kind;
  options.optimizer.defaults.lr = 0.01;
  options.optimizer.defaults.momentum = kind == OptimizerKind::sgd ? 0.9 : 0;
  options.optimizer.decay_one_dimensional = true;
  return options;
}

struct RunOptions {
  FSDPadaptOptions optimizer = made_options();
  at::ScalarType dtype = at::kBFloat16;
  ShardPlacement placement = ShardPlacement::flat;
  int replicas = 1;         // shards are cut over size / replicas ranks
  DeviceOptions device;
};

class MadeRun {
 public:
  MadeRun(Communicator& ranks, const RunOptions& options = {}) : options_(options), device_(open_device("cpu", options.device)) {
    const int shards = ranks.size() / options.replicas;
    for (size_t i = 0; i < made_parameters().size(); ++i) {
      const Made& made = made_parameters()[i];
      ShardInfo info = cut(made.fqn, made.shape, ranks.rank() % shards, shards, options.placement);
      info.replica = ranks.rank() / shards;
      info.replicas = options.replicas;
      const std::vector<float> values = part_of(made_numbers(i, made.count), info);
      model.add(std::move(info), made_tensor(options.dtype, values));
    }
    optimizer.emplace(model, ranks, *device_, options.optimizer);
  }

  // Of step `step`, multiplied by the loss scale; laid end to end where placement is flat.
  void set_gradients(uint64_t step, at::ScalarType dtype = at::kFloat) {
    std::vector<float> all;
    for (size_t i = 0; i < model.size(); ++i) {
      std::vector<float> g = part_of(made_numbers(100 * (step + 1) + i, made_parameters()[i].count), model[i].description);
      for (float& value : g) value *= optimizer->scaler().scale();
      all.insert(all.end(), g.begin(), g.end());
    }
    const at::Tensor flat = made_tensor(dtype, all);
    int64_t at = 0;
    for (size_t i = 0; i < model.size(); ++i) {
      const auto count = static_cast<int64_t>(model[i].description.count());
      const at::Tensor part = flat.narrow(0, at, count);
      model[i].grad = options_.placement == ShardPlacement::flat ? part : part.clone();
      at += count;
    }
  }

  bool step(uint64_t number, at::ScalarType dtype = at::kFloat) {
    set_gradients(number, dtype);
    return optimizer->step();
  }

  std::vector<float> master(size_t i) { return numbers(optimizer->state().master(i), i); }
  std::vector<float> moment(size_t i, int m) { return numbers(optimizer->state().moment(i, m), i); }
  Device& device() { return *device_; }

  // Masters, moments, steps and parameters, to be compared.
  std::vector<std::vector<float>> everything() {
    std::vector<std::vector<float>> all;
    for (size_t i = 0; i < model.size(); ++i) {
      all.push_back(master(i));
      const OptimizerState& state = optimizer->state();
      for (int m = 0; m < state.moments(i) && state.step(i) > 0; ++m) all.push_back(moment(i, m));
      // SGD does not count its steps.
      all.push_back({static_cast<float>(state.moments(i) == 2 ? state.step(i) : std::min<uint64_t>(state.step(i), 1))});
      std::vector<float> bits;
      const auto* bytes = static_cast<const uint8_t*>(model[i].values.const_data_ptr());
      for (size_t b = 0; b < model[i].values.nbytes(); ++b) bits.push_back(bytes[b]);
      all.push_back(std::move(bits));
    }
    return all;
  }

  MadeModel model;

 private:
  std::vector<float> numbers(const float* data, size_t i) {
    return data == nullptr ? std::vector<float>() : std::vector<float>(data, data + optimizer->state().count(i));
  }

  const RunOptions options_;
  std::unique_ptr<Device> device_;

 public:
  std::optional<FSDPadaptOptimizer> optimizer;   // with made_options(), ids are places in made_parameters()
};

inline void expect_all_well(const RankResults& results) {
  for (const auto& finding : results.findings) EXPECT_FALSE(finding) << Error(*finding).what();
}

}  // namespace fsdpctl::train
