// What must not change a bit: how parameters are cut, where they live, what is gathered early or computed twice, and how
// micro-batches are spread over ranks.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/train/training.h"

namespace fsdpctl::train {
namespace {

using std::chrono::microseconds;

Training base() {
  Training training;
  training.model = small_mlp;
  training.options.policy = wrap_kinds({"MlpLayer"}, {});
  training.dropout = true;
  return training;
}

Training low_precision() {
  Training training = base();
  const UnitSettings settings{{DType::bfloat16, DType::float32, DType::float32}, false};
  training.options.root = settings;
  training.options.policy = wrap_kinds({"MlpLayer"}, settings);
  return training;
}

// A training and the same with something else.
template <class Change>
void expect_no_difference(Training training, Change change) {
  const Trained before = train(training);
  change(training);
  expect_identical(before, train(training));
}

TEST(FsdpExactness, LossGoesDown) {
  Training training = base();
  training.steps = 40;
  training.dropout = false;
  training.shards = 2;
  training.learning_rate = 1;
  const std::vector<double> losses = train(training).losses;
  EXPECT_LT(losses.back(), 0.7 * losses.front());
}

class BothPrecisions : public ::testing::TestWithParam<bool> {
 protected:
  static Training training() { return GetParam() ? low_precision() : base(); }
};
INSTANTIATE_TEST_SUITE_P(FsdpExactness, BothPrecisions, ::testing::Bool(),
                         [](const auto& low) { return low.param ? "BFloat16" : "Float32"; });

TEST_P(BothPrecisions, Reruns) {
  Training two = training();
  two.shards = 2;
  expect_no_difference(two, [](Training&) {});
}

TEST_P(BothPrecisions, RanksAndMicroBatches) {
  for (const int ranks : {2, 3, 4}) {
    Training one = training();
    one.micro_batches = ranks;
    expect_no_difference(one, [&](Training& t) {
      t.micro_batches = 1;
      t.shards = ranks;
    });
  }
}

TEST_P(BothPrecisions, FlatAndPerParameter) {
  for (const int ranks : {1, 2, 3, 5}) {
    Training flat = training();
    flat.shards = ranks;
    flat.micro_batches = 2;
    expect_no_difference(flat, [](Training& t) { t.options.placement = ShardPlacement::per_parameter; });
  }
}

TEST_P(BothPrecisions, OffloadAtAnySpeed) {
  for (const int ranks : {1, 3}) {
    for (const ShardPlacement placement : {ShardPlacement::flat, ShardPlacement::per_parameter}) {
      Training kept = training();
      kept.shards = ranks;
      kept.micro_batches = 2;
      kept.options.placement = placement;
      const Trained before = train(kept);
      kept.options.offload_parameters = true;
      kept.copy_delay = microseconds(300);
      const Trained offloaded = train(kept);
      expect_identical(before, offloaded);
      EXPECT_EQ(offloaded.early_releases, 0u);
    }
  }
}

TEST_P(BothPrecisions, Prefetch) {
  for (const bool offload : {false, true}) {
    Training early = training();
    early.shards = 2;
    early.options.offload_parameters = offload;
    expect_no_difference(early, [](Training& t) { t.options.prefetch = false; });
  }
}

TEST_P(BothPrecisions, ActivationCheckpointing) {
  Training kept = training();
  kept.shards = 2;
  kept.micro_batches = 2;
  const Trained before = train(kept);
  UnitSettings settings = kept.options.root;
  settings.replay = true;
  kept.options.policy = wrap_kinds({"MlpLayer"}, settings);
  expect_identical(before, train(kept));
  kept.options.root.replay = true;
  expect_identical(before, train(kept));
}

TEST_P(BothPrecisions, OneUnitOrMany) {
  Training many = training();
  many.shards = 2;
  expect_no_difference(many, [](Training& t) { t.options.policy = {}; });
}

TEST_P(BothPrecisions, NoShardAndFullShard) {
  Training full = training();
  full.shards = 3;
  full.micro_batches = 2;
  expect_no_difference(full, [](Training& t) { std::swap(t.shards, t.replicas); });
}

// expect_identical compares every replica of one with every replica of the other.
TEST_P(BothPrecisions, HsdpReplicas) {
  for (const bool each : {true, false}) {
    Training hybrid = training();
    hybrid.shards = 2;
    hybrid.replicas = 2;
    hybrid.micro_batches = 2;
    hybrid.synchronise_each = each;
    expect_no_difference(hybrid, [](Training&) {});
  }
}

// Without synchronisation the sum's order differs, and so do last bits.
TEST_P(BothPrecisions, AccumulationWithoutSynchronisation) {
  Training each = training();
  each.shards = 2;
  each.micro_batches = 3;
  each.steps = 1;
  const Trained synchronised = train(each);
  each.synchronise_each = false;
  const Trained last = train(each);
  EXPECT_EQ(synchronised.losses, last.losses);
  for (const auto& [fqn, values] : synchronised.first_gradients[0]) {
    const std::vector<float>& others = last.first_gradients[0].at(fqn);
    float largest = 0, difference = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - others[i]));
    }
    EXPECT_LE(difference, 1e-6 * largest) << fqn;
  }
  // One rank that adds its own is the same either way.
  each.shards = 1;
  expect_no_difference(each, [](Training& t) { t.synchronise_each = true; });
}

// The same tokens every time: only the masks differ.
TEST(FsdpExactness, DropoutDependsOnStepAndMicroBatch) {
  const auto losses_of = [](bool dropout) {
    Training training = base();
    training.steps = 3;
    training.learning_rate = 0;
    training.dropout = dropout;
    training.tokens = [&training](uint64_t, uint64_t) {
      return at::arange(training.batch * (training.length + 1), at::kLong).view({training.batch, -1}).remainder(training.vocabulary);
    };
    return train(training).losses;
  };
  const std::vector<double> with = losses_of(true), without = losses_of(false);
  EXPECT_EQ(without[0], without[1]);
  EXPECT_NE(with[0], with[1]);
  EXPECT_NE(with[1], with[2]);
  EXPECT_NE(with[0], without[0]);
}

}  // namespace
}  // namespace fsdpctl::train
