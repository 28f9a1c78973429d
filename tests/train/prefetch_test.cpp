// What is gathered when: prefetch with and without offload, and the root's parameters from forward to backward.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/train/training.h"

namespace fsdpctl::train {
namespace {

using Probe = std::function<void()>;

// y = w x, with a look at the memory.
class Probed : public Module {
 public:
  explicit Probed(const Probe& probe) : Module("Probed"), probe_(probe), weight_(add_parameter("weight", {8}, {Initial::uniform, 1})) {}
  Tensors forward(const Tensors& inputs) override {
    if (probe_) probe_();
    return {inputs[0] * weight_->value};
  }

 private:
  const Probe& probe_;
  ParameterSlot weight_;
};

class Chain : public Module {
 public:
  explicit Chain(const Probe& probe) : Module("Chain"), weight_(add_parameter("weight", {8}, {Initial::ones, 0})) {
    for (int i = 0; i < 5; ++i) links_.push_back(&add_child(std::to_string(i), std::make_unique<Probed>(probe)));
  }
  Tensors forward(const Tensors& inputs) override {
    at::Tensor x = inputs[0] * weight_->value;
    for (Module* link : links_) x = (*link)(x);
    return {x};
  }

 private:
  ParameterSlot weight_;
  std::vector<Module*> links_;
};

// Units that are gathered, or being so, and in brackets those whose shard is there for that.
std::string present(FsdpModel& model) {
  std::string gathered, waiting;
  for (const MemoryAccount& account : model.memory().accounts()) {
    if (account.live == 0) continue;
    if (account.use == "gathered parameters") gathered += (gathered.empty() ? "" : " ") + account.owner;
    if (account.use == "shard to be gathered") waiting += " (" + account.owner + ")";
  }
  return gathered + waiting;
}

// Runs a body on two ranks with a model of a root and five units; what is there when each of these computes goes to `seen`.
void on_ranks(bool offload, const std::function<void(FsdpModel& model, std::vector<std::string>& seen)>& body) {
  on_mesh(2, 1, [&](const Mesh& mesh, int) {
    DeviceOptions slow;
    slow.copy_delay = std::chrono::microseconds(200);
    slow.poison = true;
    const std::unique_ptr<Device> device = open_device("cpu", slow);
    FsdpOptions options;
    options.policy = wrap_kinds({"Probed"}, {});
    options.offload_parameters = offload;
    Probe probe;
    FsdpModel model(std::make_unique<Chain>(probe), mesh, options, *device);
    model.initialize(1);
    std::vector<std::string> seen;
    probe = [&] { seen.push_back(present(model)); };
    body(model, seen);
    EXPECT_EQ(model.memory().early_releases(), 0u);
  });
}

const at::Tensor& input() {
  static const at::Tensor x = at::ones({2, 8});
  return x;
}

using Seen = std::vector<std::string>;

TEST(Prefetch, GathersTheNextUnitInAKnownOrder) {
  on_ranks(false, [](FsdpModel& model, Seen& seen) {
    const at::NoGradGuard no_grad;
    model.forward({input()});
    EXPECT_EQ(seen, (Seen{"0 root", "1 root", "2 root", "3 root", "4 root"}));   // the first pass does not know it
    seen.clear();
    model.forward({input()});
    EXPECT_EQ(seen, (Seen{"0 1 root", "1 2 root", "2 3 root", "3 4 root", "4 root"}));
    EXPECT_EQ(present(model), "");
  });
}

TEST(Prefetch, WithOffloadTheShardAfterThatIsOnItsWay) {
  on_ranks(true, [](FsdpModel& model, Seen& seen) {
    const at::NoGradGuard no_grad;
    model.forward({input()});
    seen.clear();
    model.forward({input()});
    EXPECT_EQ(seen, (Seen{"0 1 root (1) (2)", "1 2 root (2) (3)", "2 3 root (3) (4)", "3 4 root (4)", "4 root"}));
    EXPECT_EQ(present(model), "");
  });
}

TEST(RootUnit, IsKeptFromForwardToBackward) {
  for (const bool offload : {false, true}) {
    on_ranks(offload, [](FsdpModel& model, Seen&) {
      {
        const at::NoGradGuard no_grad;
        model.forward({input()});
        EXPECT_EQ(present(model), "");   // no backward will come
      }
      const at::Tensor loss = model.forward({input()})[0].sum();
      EXPECT_EQ(present(model), "root");
      model.backward(loss);
      EXPECT_EQ(present(model), "");
    });
  }
}

TEST(RootUnit, WhatWasKeptIsNotUsedAfterAStep) {
  on_ranks(false, [](FsdpModel& model, Seen&) {
    const at::Tensor before = model.forward({input()})[0];   // whose graph stays
    for (ParameterShard* shard : model.shards()) shard->local().mul_(2);
    const at::Tensor after = model.forward({input()})[0];
    EXPECT_TRUE(at::equal(after, before * 64));   // of six units
    model.set_values([](const NamedParameter&, uint64_t, std::span<float> out) { std::fill(out.begin(), out.end(), 1.0f); });
    EXPECT_TRUE(at::equal(model.forward({input()})[0], input()));
  });
}

}  // namespace
}  // namespace fsdpctl::train
