// What units do around their computation: second backwards, frozen, tied and unused parameters, memory, precision, misuse.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lib/train/models/layers.h"
#include "lib/train/models/mlp.h"
#include "tests/support/error_of.h"
#include "tests/train/training.h"

namespace fsdpctl::train {
namespace {

// y = w x (+ b), as a unit or not.
class Scale : public Module {
 public:
  explicit Scale(int64_t size, bool used = true) : Module("Scale"), used_(used) {
    weight_ = add_parameter("weight", {size}, {Initial::uniform, 1});
    add_buffer("offset", {at::ones({size}), false});
  }
  Tensors forward(const Tensors& inputs) override {
    if (!used_) return {inputs[0]};
    seen = weight_->value.scalar_type();
    return {inputs[0] * weight_->value + buffers()[0].second.value};
  }
  at::ScalarType seen = at::kFloat;
  const ParameterSlot& weight() const { return weight_; }

 private:
  const bool used_;
  ParameterSlot weight_;
};

class Chain : public Module {
 public:
  explicit Chain(std::vector<std::unique_ptr<Module>> links) : Module("Chain") {
    for (auto& link : links) links_.push_back(&add_child(std::to_string(links_.size()), std::move(link)));
  }
  Tensors forward(const Tensors& inputs) override {
    Tensors x = inputs;
    for (Module* link : links_) x = (*link)(x);
    return x;
  }
  Module& link(size_t i) { return *links_[i]; }

 private:
  std::vector<Module*> links_;
};

std::unique_ptr<Chain> chain(std::vector<bool> used) {
  std::vector<std::unique_ptr<Module>> links;
  for (const bool u : used) links.push_back(std::make_unique<Scale>(5, u));
  return std::make_unique<Chain>(std::move(links));
}

class FsdpModelTest : public ::testing::Test {
 protected:
  std::unique_ptr<FsdpModel> model(std::unique_ptr<Module> root, UnitSettings settings = {}, const Mesh& mesh = {}) {
    FsdpOptions options;
    options.root = settings;
    options.policy = wrap_kinds({"Scale"}, settings);
    auto made = std::make_unique<FsdpModel>(std::move(root), mesh, options, *device_);
    made->initialize(1);
    return made;
  }
  static std::vector<at::Tensor> gradients(FsdpModel& model) {
    std::vector<at::Tensor> all;
    for (ParameterShard* shard : model.shards()) {
      const at::Tensor gradient = shard->gradient();
      all.push_back(gradient.defined() ? gradient.clone() : gradient);
    }
    return all;
  }
  static at::Tensor loss(FsdpModel& model, const at::Tensor& x) { return model.forward({x})[0].to(at::kFloat).pow(2).sum(); }

  std::unique_ptr<Device> device_ = open_device("cpu");
  at::Tensor x_ = at::ones({3, 5}) * 0.5;
};

TEST_F(FsdpModelTest, RetainedGraphAddsTheSameBitsAgain) {
  const auto once = model(chain({true, true})), twice = model(chain({true, true}));
  once->backward(loss(*once, x_));
  const at::Tensor retained = loss(*twice, x_);
  twice->backward(retained, true);
  twice->backward(retained, true);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(gradients(*once)[i] * 2, gradients(*twice)[i]));
}

TEST_F(FsdpModelTest, SecondBackwardWithoutGraphChangesNothing) {
  for (const bool replay : {false, true}) {
    UnitSettings settings;
    settings.replay = replay;
    const auto m = model(chain({true, true}), settings);
    const at::Tensor sum = m->forward({x_})[0].sum();   // a loss that saves nothing itself
    m->backward(sum, replay);                           // even a retained graph does not help where it is replayed
    const std::vector<at::Tensor> before = gradients(*m);
    EXPECT_THAT(error_of([&] { m->backward(sum); }).what, ::testing::HasSubstr("second time"));
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], gradients(*m)[i]));
  }
}

// The first unit replays, the last does not: what the last could add must not be added.
TEST_F(FsdpModelTest, SecondBackwardLooksAtAllUnitsFirst) {
  FsdpOptions options;
  options.policy = [](const Module& module) -> std::optional<UnitSettings> {
    UnitSettings settings;
    settings.replay = module.fqn() == "0";
    return module.kind() == "Scale" ? std::optional(settings) : std::nullopt;
  };
  FsdpModel m(chain({true, true}), {}, options, *device_);
  m.initialize(1);
  const at::Tensor sum = m.forward({x_})[0].sum();
  m.backward(sum, true);
  const std::vector<at::Tensor> before = gradients(m);
  EXPECT_EQ(error_of([&] { m.backward(sum, true); }).code, Exit::failed);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], gradients(m)[i]));
}

TEST_F(FsdpModelTest, FrozenAndUnusedParametersHaveNoGradient) {
  auto root = chain({true, true, false});
  static_cast<Scale&>(root->link(1)).weight()->trainable = false;
  const auto m = model(std::move(root));
  m->backward(loss(*m, x_));
  EXPECT_TRUE(m->shards()[0]->has_gradient());
  EXPECT_FALSE(m->shards()[1]->has_gradient());
  EXPECT_FALSE(m->shards()[1]->info().requires_grad);
  EXPECT_FALSE(m->shards()[1]->gradient().defined());
  EXPECT_FALSE(m->shards()[2]->has_gradient());
  for (const MemoryAccount& account : m->memory().accounts()) {
    if (account.owner == "1") {
      EXPECT_EQ(account.use.find("gradient"), std::string::npos) << account.use;
    }
  }
  // All frozen: nothing to go back through.
  auto frozen = chain({true});
  static_cast<Scale&>(frozen->link(0)).weight()->trainable = false;
  EXPECT_FALSE(model(std::move(frozen))->forward({x_})[0].requires_grad());
}

// y = w x, and on the first micro-batch also + b; c is never used.
class Sometimes : public Module {
 public:
  Sometimes() : Module("Sometimes") {
    for (const char* name : {"w", "b", "c"}) slots_.push_back(add_parameter(name, {5}, {Initial::uniform, 1}));
  }
  Tensors forward(const Tensors& inputs) override {
    const at::Tensor y = inputs[0] * slots_[0]->value;
    return {micro_batch().index == 0 ? y + slots_[1]->value : y};
  }

 private:
  std::vector<ParameterSlot> slots_;
};

TEST(FsdpGradients, WhatOneRankAloneHasIsTheSumAndTheRestIsZero) {
  for (const ShardPlacement placement : {ShardPlacement::flat, ShardPlacement::per_parameter}) {
    on_mesh(2, 1, [&](const Mesh& mesh, int rank) {
      DeviceOptions poisoned;
      poisoned.poison = true;   // what is not written is NaN
      const std::unique_ptr<Device> device = open_device("cpu", poisoned);
      FsdpOptions options;
      options.placement = placement;
      FsdpModel model(std::make_unique<Sometimes>(), mesh, options, *device);
      model.initialize(1);
      MicroBatch micro_batch;
      micro_batch.index = static_cast<uint64_t>(rank);
      model.backward(model.forward({at::ones({3, 5})}, micro_batch)[0].sum());
      const std::vector<float> expected = {6, 3, 0};   // w on both ranks, b on the first
      for (size_t i = 0; i < 3; ++i) {
        ParameterShard& shard = *model.shards()[i];
        EXPECT_EQ(shard.has_gradient(), i == 0 || (i == 1 && rank == 0));
        const at::Tensor gradient = shard.gradient();
        ASSERT_TRUE(gradient.defined());
        EXPECT_TRUE(at::equal(gradient, at::ones({gradient.numel()}) * expected[i])) << i;
      }
      model.average_gradients(2);
      const at::Tensor mean = model.shards()[0]->gradient();
      EXPECT_TRUE(at::equal(mean, at::ones({mean.numel()}) * 3));
    });
  }
}

TEST_F(FsdpModelTest, InputsGetGradientsThroughUnits) {
  const at::Tensor leaf = at::randn({3, 5}).set_requires_grad(true);
  const auto m = model(chain({true, true}));
  m->backward(loss(*m, leaf));
  ASSERT_TRUE(leaf.grad().defined());
  // By hand: y = (x w0 + 1) w1 + 1, dL/dx = 2 y w1 w0.
  const at::Tensor w0 = m->shards()[0]->local(), w1 = m->shards()[1]->local();
  const at::Tensor expected = ((leaf.detach() * w0 + 1) * w1 + 1) * 2 * w1 * w0;
  EXPECT_LT((expected - leaf.grad()).abs().max().item<double>(), 1e-5);
}

TEST_F(FsdpModelTest, ChangedInputsAreNoticed) {
  UnitSettings settings;
  settings.replay = true;
  const auto m = model(chain({true}), settings);
  at::Tensor x = x_.clone();
  const at::Tensor sum = m->forward({x})[0].sum();
  x.add_(1);
  EXPECT_THAT(error_of([&] { m->backward(sum); }).what, ::testing::HasSubstr("changed"));
}

TEST_F(FsdpModelTest, PrecisionOfUnits) {
  UnitSettings low;
  low.precision = {DType::bfloat16, DType::float32, DType::bfloat16};
  FsdpOptions options;
  options.policy = [&](const Module& module) -> std::optional<UnitSettings> {
    if (module.kind() != "Scale") return std::nullopt;
    return module.fqn() == "0" ? low : UnitSettings{};
  };
  auto root = chain({true, true});
  auto &first = static_cast<Scale&>(root->link(0)), &second = static_cast<Scale&>(root->link(1));
  FsdpModel m(std::move(root), {}, options, *device_);
  m.initialize(1);
  m.backward(loss(m, x_));
  EXPECT_EQ(first.seen, at::kBFloat16);
  EXPECT_EQ(first.buffers()[0].second.value.scalar_type(), at::kBFloat16);
  EXPECT_EQ(second.seen, at::kFloat);
  EXPECT_EQ(m.shards()[0]->local().scalar_type(), at::kBFloat16);
  EXPECT_EQ(m.shards()[0]->gradient().scalar_type(), at::kFloat);
  const at::Tensor master = m.shards()[0]->initial_master();
  EXPECT_TRUE(at::equal(master.to(at::kBFloat16), m.shards()[0]->local()));
  EXPECT_FALSE(at::equal(master, m.shards()[0]->local().to(at::kFloat)));
  EXPECT_FALSE(m.shards()[0]->initial_master().defined());   // given out once
  EXPECT_FALSE(m.shards()[1]->initial_master().defined());   // local() is the master
}

TEST_F(FsdpModelTest, TiedParametersAreOneShard) {
  MlpConfig config;
  config.tie_word_embeddings = true;
  FsdpOptions options;
  options.policy = wrap_kinds({"MlpLayer"}, {});
  FsdpModel m(make_mlp(config), {}, options, *device_);
  std::vector<std::string> names;
  for (ParameterShard* shard : m.shards()) names.push_back(shard->info().fqn);
  EXPECT_EQ(names.front(), "embed.weight");
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("head.weight")));
  EXPECT_EQ(m.units()[0]->parameters().all()[0].aliases, std::vector<std::string>{"head.weight"});

  options.policy = wrap_kinds({"Linear"}, {});
  const Finding finding = error_of([&] { FsdpModel(make_mlp(config), {}, options, *device_); });
  EXPECT_EQ(finding.what, "tied parameters are in different units");
  EXPECT_EQ(finding.where.key, "embed.weight");
  EXPECT_EQ(finding.found, "head.weight");
}

TEST_F(FsdpModelTest, WithoutGradModeNothingIsKept) {
  const auto m = model(chain({true, true}));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(m->forward({x_})[0].requires_grad());
}

TEST_F(FsdpModelTest, ALossHasOneElement) {
  const auto m = model(chain({true}));
  const Finding finding = error_of([&] { m->backward(m->forward({x_})[0]); });
  EXPECT_EQ(finding.code, Exit::usage);
  EXPECT_EQ(finding.found, "shape [3, 5]");
}

TEST_F(FsdpModelTest, LibTorchsErrorsAreErrors) {
  const auto m = model(chain({true}));
  EXPECT_EQ(error_of([&] { m->forward({at::ones({2, 3})}); }).what, "the model's forward failed");
  m->backward(loss(*m, x_));   // and the model goes on
}

// A read of a gathered parameter before it is there, and of memory under a copy, throws.
TEST_F(FsdpModelTest, MemoryUnderACopyIsGuarded) {
  DeviceOptions slow;
  slow.copy_delay = std::chrono::milliseconds(20);
  const std::unique_ptr<Device> device = open_device("cpu", slow);
  MemoryLedger ledger(*device);
  MemoryBlock host = ledger.allocate(Place::pinned, 64, "unit", "parameters");
  std::memset(host.mutable_data(), 7, 64);
  {
    MemoryBlock there = ledger.allocate(Place::device, 64, "unit", "gathered");
    Copy copy = ledger.copy(there, 0, host, 0, 64);
    EXPECT_EQ(error_of([&] { (void)there.data(); }).code, Exit::failed);
    EXPECT_EQ(error_of([&] { (void)host.mutable_data(); }).code, Exit::failed);
    (void)host.data();   // two may read
    copy.wait();
    EXPECT_EQ(static_cast<const char*>(there.data())[63], 7);
    (void)host.mutable_data();
    EXPECT_EQ(ledger.early_releases(), 0u);
    copy = ledger.copy(there, 0, host, 0, 64);
  }
  EXPECT_EQ(ledger.early_releases(), 1u);
  EXPECT_EQ(error_of([&] { ledger.copy(host, 60, host, 0, 8); }).what, "a copy exceeds its target");
}

// No rank holds the whole model: its shard, its gradients, and the units in use.
TEST(FsdpMemory, NoRankHoldsTheWholeModel) {
  Training training;
  training.model = [] {
    MlpConfig config;
    config.vocab_size = 32;
    config.hidden_size = 16;
    config.intermediate_size = 64;
    config.num_hidden_layers = 24;
    return make_mlp(config);
  };
  training.options.policy = wrap_kinds({"MlpLayer"}, {});
  training.shards = 4;
  const uint64_t layer = (16 * 64 * 2 + 16 + 64) * sizeof(float), root = 32 * 16 * 2 * sizeof(float), whole = 24 * layer + root;
  for (const ShardPlacement placement : {ShardPlacement::flat, ShardPlacement::per_parameter}) {
    training.options.placement = placement;
    const Trained trained = train(training);
    // Shards and their gradients, the root, and at most two layers gathered and two with gradients, each with what its form needs to
    // get there.
    EXPECT_LT(trained.device_peak, 2 * whole / 4 + 3 * root + 8 * layer + 4096);
    EXPECT_LT(trained.device_peak, whole);
  }
}

// Values depend on seed and name alone.
TEST(FsdpInitialisation, DoesNotDependOnRanksOrPlacement) {
  const auto values = [](int shards, ShardPlacement placement, uint64_t seed) {
    Training training;
    training.model = small_mlp;
    training.shards = shards;
    training.steps = 0;
    training.seed = seed;
    training.options.placement = placement;
    return train(training).parameters[0];
  };
  const FullTensors one = values(1, ShardPlacement::flat, 1);
  EXPECT_EQ(one, values(3, ShardPlacement::flat, 1));
  EXPECT_EQ(one, values(4, ShardPlacement::per_parameter, 1));
  EXPECT_NE(one, values(1, ShardPlacement::flat, 2));
  EXPECT_NE(one.at("layers.0.up.weight"), one.at("layers.1.up.weight"));
}

}  // namespace
}  // namespace fsdpctl::train
