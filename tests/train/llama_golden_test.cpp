// Against Hugging Face's Llama and PyTorch FSDP2, as tests/train/golden/make_llama.py recorded them.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/kernels.h"
#include "kernels/scalars.h"
#include "lib/base/file.h"
#include "lib/train/models/model_config.h"
#include "lib/train/torch_types.h"
#include "tests/support/temp_dir.h"
#include "tests/train/training.h"

namespace fsdpctl::train {
namespace {

using nlohmann::json;

class Golden {
 public:
  Golden() : json_(json::parse(read_text(test_data("llama/golden.json"), 64 << 20))) {
    const FileHandle file = FileHandle::open_read(test_data("llama/tensors.bin"));
    bytes_.resize(file.size());
    file.read(0, bytes_);
  }
  const json& of(const std::string& model) const { return json_["models"][model]; }
  const json& all() const { return json_; }

  at::Tensor tensor(const std::string& name) {
    const json& entry = json_["tensors"].at(name);
    const auto shape = entry["shape"].get<std::vector<int64_t>>();
    const DType dtype = *dtype_from_name(entry["dtype"].get<std::string>());
    return tensor_over(bytes_.data() + entry["offset"].get<uint64_t>(), element_count(shape), dtype).view(shape);
  }

  std::unique_ptr<Module> model(const std::string& name, bool eager = false) const {
    json config = of(name)["config"];
    if (eager) config["attn_implementation"] = "eager";
    return make_model(parse_model_config(config.dump(), "golden.json"));
  }

  ParameterValues weights(const std::string& model) {
    return [this, model](const NamedParameter& parameter, uint64_t begin, std::span<float> out) {
      const at::Tensor whole = tensor(model + " weight " + parameter.fqn);
      std::memcpy(out.data(), whole.const_data_ptr<float>() + begin, out.size() * sizeof(float));
    };
  }

  // Whether this machine's single operations give the bits of the one that recorded.
  bool same_operations() {
    bool same = true;
    const at::Tensor a = input("a"), b = input("b");
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::string name = dtype == at::kFloat ? "torch.float32" : "torch.bfloat16";
      same &= at::equal(at::linear(a.to(dtype), b.to(dtype)), tensor("canary linear " + name));
      same &= at::equal(at::silu(a.to(dtype)), tensor("canary silu " + name));
      const at::Tensor attended = at::scaled_dot_product_attention(input("q").to(dtype), input("k").to(dtype), input("v").to(dtype), {}, 0.0, true);
      same &= at::equal(attended, tensor("canary sdpa " + name));
    }
    same &= at::equal(a.pow(2).mean(-1, true), tensor("canary mean"));
    return same && at::equal(a.cos(), tensor("canary cos")) && at::equal(a.sin(), tensor("canary sin"));
  }

 private:
  at::Tensor input(const std::string& name) { return tensor("canary input " + name); }
  json json_;
  std::vector<std::byte> bytes_;
};

class LlamaGolden : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  at::Tensor logits(DType dtype, bool eager) {
    const std::unique_ptr<Device> device = open_device("cpu");
    FsdpOptions options;
    options.root.precision.compute = dtype;
    FsdpModel model(golden_.model(GetParam(), eager), {}, options, *device);
    model.set_values(golden_.weights(GetParam()));
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = golden_.tensor(std::string(GetParam()) + " tokens")[0][0];
    return model.forward({tokens.narrow(1, 0, tokens.size(1) - 1)})[0];
  }

  void expect_logits(const char* label, DType dtype, bool eager, double tolerance) {
    const at::Tensor ours = logits(dtype, eager), theirs = golden_.tensor(std::string(GetParam()) + " logits " + label);
    const double largest = theirs.to(at::kFloat).abs().max().item<double>();
    const double difference = (ours.to(at::kFloat) - theirs.to(at::kFloat)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * largest) << label;
  }

  Golden golden_;
};
INSTANTIATE_TEST_SUITE_P(Models, LlamaGolden, ::testing::Values("grouped", "tied"), [](const auto& name) { return name.param; });

TEST_P(LlamaGolden, LogitsAreHuggingFaces) {
  const bool exact = golden_.same_operations();
  RecordProperty("exact", exact);
  expect_logits("float32", DType::float32, false, exact ? 0 : 1e-5);
  expect_logits("bfloat16", DType::bfloat16, false, exact ? 0 : 2e-2);
  expect_logits("eager", DType::float32, true, 1e-5);
}

// AdamW by our kernels, in place of PyTorch's.
class AdamW {
 public:
  explicit AdamW(const json& settings) : settings_(settings), kernels_(kernels::cpu_kernels(1)) {}

  void step(FsdpModel& model) {
    if (states_.empty()) {
      for (ParameterShard* shard : model.shards()) add(*shard);
    }
    ++steps_;
    std::vector<kernels::AdamEntry> table;
    for (size_t i = 0; i < states_.size(); ++i) {
      ParameterShard& shard = *model.shards()[i];
      State& state = states_[i];
      if (shard.info().count() == 0) continue;
      const at::Tensor local = shard.local();
      const bool separate = local.scalar_type() != at::kFloat;
      table.push_back({shard.gradient().const_data_ptr(), state.master.mutable_data_ptr<float>(), state.first.data(), state.second.data(),
                       separate ? local.mutable_data_ptr() : nullptr, shard.info().count(), kernels::FloatType::float32,
                       kernels::float_type(dtype_of(local.scalar_type())), 0, 0});
    }
    kernels::AdamOptions options;
    options.lr = settings_["lr"].get<double>();
    options.beta1 = settings_["betas"][0].get<double>();
    options.beta2 = settings_["betas"][1].get<double>();
    options.eps = settings_["eps"].get<double>();
    options.weight_decay = settings_["weight_decay"].get<double>();
    kernels_->adam(table, std::vector{kernels::adamw_scalars(options, steps_, 1.0f)});
    for (ParameterShard* shard : model.shards()) shard->clear_gradient();
  }

 private:
  struct State {
    at::Tensor master;
    std::vector<float> first, second;
  };
  void add(ParameterShard& shard) {
    const at::Tensor initial = shard.initial_master();
    const size_t count = shard.info().count();
    states_.push_back({initial.defined() ? initial : shard.local(), std::vector<float>(count), std::vector<float>(count)});
  }

  json settings_;
  std::unique_ptr<kernels::Kernels> kernels_;
  std::vector<State> states_;
  uint64_t steps_ = 0;
};

// Two ranks, one unit for each layer, as the script does it.
class LlamaTraining : public LlamaGolden {
 protected:
  Trained train_as(ShardPlacement placement, bool low) {
    Training training;
    training.model = [this] { return golden_.model(GetParam()); };
    training.values = golden_.weights(GetParam());
    training.tokens = [this](uint64_t step, uint64_t micro_batch) {
      return golden_.tensor(std::string(GetParam()) + " tokens")[static_cast<int64_t>(step)][static_cast<int64_t>(micro_batch)];
    };
    UnitSettings settings;
    if (low) settings.precision.compute = DType::bfloat16;
    training.options.root = settings;
    training.options.policy = wrap_kinds({"LlamaDecoderLayer"}, settings);
    training.options.placement = placement;
    training.shards = golden_.all()["ranks"].get<int>();
    training.steps = golden_.all()["steps"].get<int>();
    training.length = golden_.tensor(std::string(GetParam()) + " tokens").size(-1) - 1;
    std::vector<AdamW> optimizers;
    for (int rank = 0; rank < training.shards; ++rank) optimizers.emplace_back(golden_.all()["adamw"]);
    training.optimize = [&](FsdpModel& model, int rank) { optimizers[static_cast<size_t>(rank)].step(model); };
    return train(training);
  }

  void expect_losses(const Trained& trained, const char* precision, double tolerance) {
    const json& theirs = golden_.of(GetParam())["losses"][precision];
    for (size_t step = 0; step < trained.losses.size(); ++step) {
      const double loss = (theirs[step][0].get<double>() + theirs[step][1].get<double>()) / 2;
      EXPECT_NEAR(trained.losses[step], loss, tolerance * std::abs(loss)) << "step " << step;
    }
    EXPECT_LT(trained.losses.back(), 0.8 * trained.losses.front());
  }
};
INSTANTIATE_TEST_SUITE_P(Models, LlamaTraining, ::testing::Values("grouped", "tied"), [](const auto& name) { return name.param; });

TEST_P(LlamaTraining, LossesAndGradientsAreFsdp2s) {
  const Trained flat = train_as(ShardPlacement::flat, false);
  expect_losses(flat, "float32", 1e-6);
  for (const auto& [fqn, ours] : flat.first_gradients[0]) {
    const at::Tensor theirs = golden_.tensor(std::string(GetParam()) + " gradient " + fqn);
    ASSERT_EQ(static_cast<int64_t>(ours.size()), theirs.numel()) << fqn;
    const auto* values = theirs.const_data_ptr<float>();
    float largest = 0, difference = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - ours[i]));
    }
    EXPECT_LE(difference, 1e-6 * largest) << fqn;
  }
  expect_identical(flat, train_as(ShardPlacement::per_parameter, false));
}

TEST_P(LlamaTraining, LossesAreFsdp2sInBFloat16) { expect_losses(train_as(ShardPlacement::per_parameter, true), "bfloat16", 2e-4); }

}  // namespace
}  // namespace fsdpctl::train
