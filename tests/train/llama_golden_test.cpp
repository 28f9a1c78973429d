// Against Hugging Face's Llama and PyTorch FSDP2, as tests/train/golden/make_llama.py recorded them.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
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

  // [step, rank, row, position]
  at::Tensor tokens(const std::string& model) { return tensor(model + " tokens").to(at::kLong); }

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
    options.root.precision.compute = options.root.precision.buffers = dtype;
    FsdpModel model(golden_.model(GetParam(), eager), {}, options, *device);
    model.set_values(golden_.weights(GetParam()));
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = golden_.tokens(GetParam())[0][0].narrow(0, 0, 3);
    return model.forward({tokens.narrow(1, 0, tokens.size(1) - 1)})[0];
  }

  void expect_logits(const char* label, DType dtype, bool eager, double tolerance) {
    const at::Tensor ours = logits(dtype, eager), theirs = golden_.tensor(std::string(GetParam()) + " logits " + label);
    const double largest = theirs.to(at::kFloat).abs().max().item<double>();
    const double difference = (ours.to(at::kFloat) - theirs.to(at::kFloat)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * largest) << label;
    RecordProperty(std::string("logits ") + label, fmt::format("{:.2g}", difference / largest));
  }

  Golden golden_;
};
INSTANTIATE_TEST_SUITE_P(Models, LlamaGolden, ::testing::Values("grouped", "tied", "wide"), [](const auto& name) { return name.param; });

TEST_P(LlamaGolden, LogitsAreHuggingFaces) {
  const bool exact = golden_.same_operations();
  RecordProperty("exact", exact);
  expect_logits("float32", DType::float32, false, exact ? 0 : 1e-5);
  expect_logits("bfloat16", DType::bfloat16, false, exact ? 0 : 2e-2);
  expect_logits("eager", DType::float32, true, 1e-5);
}

// AdamW by our kernels, or in the operations that torch.optim.AdamW makes of it, whose square root is not IEEE's.
class AdamW {
 public:
  enum Kind : uint8_t { ours, pytorchs };
  AdamW(const json& settings, Kind kind)
      : lr_(settings["lr"]), beta1_(settings["betas"][0]), beta2_(settings["betas"][1]), eps_(settings["eps"]),
        decay_(settings["weight_decay"]), kind_(kind), kernels_(kernels::cpu_kernels(1)) {}

  void step(FsdpModel& model) {
    if (states_.empty()) {
      for (ParameterShard* shard : model.shards()) add(*shard);
    }
    ++steps_;
    for (size_t i = 0; i < states_.size(); ++i) {
      ParameterShard& shard = *model.shards()[i];
      if (shard.info().count() != 0) kind_ == ours ? with_kernels(states_[i], shard) : with_operations(states_[i], shard);
      shard.clear_gradient();
    }
  }

 private:
  struct State {
    at::Tensor master, first, second;
  };
  void add(ParameterShard& shard) {
    const at::Tensor initial = shard.initial_master(), master = initial.defined() ? initial : shard.local();
    states_.push_back({master, at::zeros_like(master), at::zeros_like(master)});
  }

  void with_kernels(State& state, ParameterShard& shard) {
    const at::Tensor local = shard.local();
    const bool separate = local.scalar_type() != at::kFloat;
    const kernels::AdamEntry entry{shard.gradient().const_data_ptr(), state.master.mutable_data_ptr<float>(),
                                   state.first.mutable_data_ptr<float>(), state.second.mutable_data_ptr<float>(),
                                   separate ? local.mutable_data_ptr() : nullptr, shard.info().count(), kernels::FloatType::float32,
                                   kernels::float_type(dtype_of(local.scalar_type())), 0, 0};
    kernels::AdamOptions options;
    options.lr = lr_;
    options.beta1 = beta1_;
    options.beta2 = beta2_;
    options.eps = eps_;
    options.weight_decay = decay_;
    kernels_->adam(std::vector{entry}, std::vector{kernels::adamw_scalars(options, steps_, 1.0f)});
  }

  void with_operations(State& state, ParameterShard& shard) const {
    const auto steps = static_cast<double>(steps_);
    const at::Tensor gradient = shard.gradient();
    state.master.mul_(1 - lr_ * decay_);
    state.first.lerp_(gradient, 1 - beta1_);
    state.second.mul_(beta2_).addcmul_(gradient, gradient, 1 - beta2_);
    const at::Tensor denominator = (state.second.sqrt() / std::sqrt(1 - std::pow(beta2_, steps))).add_(eps_);
    state.master.addcdiv_(state.first, denominator, -(lr_ / (1 - std::pow(beta1_, steps))));
    if (shard.local().scalar_type() != at::kFloat) shard.local().copy_(state.master);
  }

  const double lr_, beta1_, beta2_, eps_, decay_;
  const Kind kind_;
  std::unique_ptr<kernels::Kernels> kernels_;
  std::vector<State> states_;
  uint64_t steps_ = 0;
};

// Two ranks, one unit for each layer, as the script does it.
class LlamaTraining : public LlamaGolden {
 protected:
  Trained train_as(ShardPlacement placement, const std::string& precision, AdamW::Kind kind = AdamW::ours) {
    Training training;
    training.model = [this] { return golden_.model(GetParam()); };
    training.values = golden_.weights(GetParam());
    training.tokens = [this](uint64_t step, uint64_t micro_batch) {
      return golden_.tokens(GetParam())[static_cast<int64_t>(step)][static_cast<int64_t>(micro_batch)];
    };
    UnitSettings settings;
    settings.precision.compute = *dtype_from_name(precision);
    training.options.root = settings;
    training.options.policy = wrap_kinds({"LlamaDecoderLayer"}, settings);
    training.options.placement = placement;
    training.shards = golden_.all()["ranks"].get<int>();
    training.steps = golden_.all()["steps"][precision].get<int>();
    training.length = golden_.tokens(GetParam()).size(-1) - 1;
    std::vector<AdamW> optimizers;
    for (int rank = 0; rank < training.shards; ++rank) optimizers.emplace_back(golden_.all()["adamw"], kind);
    training.optimize = [&](FsdpModel& model, int rank) { optimizers[static_cast<size_t>(rank)].step(model); };
    return train(training);
  }

  // The largest relative difference of a step's loss, in steps [begin, end).
  double loss_difference(const Trained& trained, const std::string& precision, size_t begin, size_t end) {
    const json& theirs = golden_.of(GetParam())["losses"][precision];
    EXPECT_LE(end, trained.losses.size());
    double most = 0;
    for (size_t step = begin; step < end; ++step) {
      const double loss = (theirs[step][0].get<double>() + theirs[step][1].get<double>()) / 2;
      EXPECT_TRUE(std::isfinite(trained.losses[step])) << step;
      most = std::max(most, std::abs(trained.losses[step] - loss) / loss);
    }
    RecordProperty(fmt::format("losses of steps {} to {}", begin, end), fmt::format("{:.2g}", most));
    return most;
  }

  // Of each parameter, relative to its largest gradient.
  void expect_gradients(const Trained& trained, const std::string& precision, float tolerance) {
    float most = 0;
    for (const auto& [fqn, ours] : trained.first_gradients[0]) {
      const at::Tensor theirs = golden_.tensor(std::string(GetParam()) + " gradient " + precision + " " + fqn);
      ASSERT_EQ(static_cast<int64_t>(ours.size()), theirs.numel()) << fqn;
      const at::Tensor copy = theirs.clone().view({-1});
      std::memcpy(copy.mutable_data_ptr(), ours.data(), ours.size() * sizeof(float));
      const float largest = theirs.abs().max().item<float>(), difference = (copy - theirs.view({-1})).abs().max().item<float>();
      EXPECT_LE(difference, tolerance * largest) << fqn;
      most = std::max(most, difference / largest);
    }
    RecordProperty("gradients", fmt::format("{:.2g}", most));
  }

};
INSTANTIATE_TEST_SUITE_P(Models, LlamaTraining, ::testing::Values("grouped", "tied"), [](const auto& name) { return name.param; });

TEST_P(LlamaTraining, LossesAndGradientsAreFsdp2s) {
  const Trained flat = train_as(ShardPlacement::flat, "float32");
  EXPECT_LE(loss_difference(flat, "float32", 0, 20), 1e-6);
  EXPECT_LE(loss_difference(flat, "float32", 20, 50), 1e-5);
  expect_gradients(flat, "float32", 1e-6f);
  EXPECT_LT(flat.losses.back(), 0.8 * flat.losses.front());
  expect_identical(flat, train_as(ShardPlacement::per_parameter, "float32"));
}

TEST_P(LlamaTraining, LossesAndGradientsAreFsdp2sInBFloat16) {
  const Trained trained = train_as(ShardPlacement::per_parameter, "bfloat16");
  EXPECT_LE(loss_difference(trained, "bfloat16", 0, 20), 2e-4);
  expect_gradients(trained, "bfloat16", 1e-2f);
}

// What is left of the difference above is the optimizer's square root.
TEST_P(LlamaTraining, IsFsdp2BitForBitWithPyTorchsOptimizer) {
  if (!golden_.same_operations()) GTEST_SKIP() << "this machine's operations give other bits than those of the one that recorded";
  for (const char* precision : {"float32", "bfloat16"}) {
    const Trained trained = train_as(ShardPlacement::per_parameter, precision, AdamW::pytorchs);
    EXPECT_EQ(loss_difference(trained, precision, 0, trained.losses.size()), 0) << precision;
    expect_gradients(trained, precision, 0);
  }
}

}  // namespace
}  // namespace fsdpctl::train
