// The trainer on ranks that are threads: what does not change the bits, what ends a run, what it says.
#include "lib/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "tests/comm/ranks.h"
#include "tests/support/temp_dir.h"
#include "tests/train/training.h"

namespace fsdpctl::train {
namespace {

using testing::HasSubstr;

struct Ran {
  std::vector<StepReport> steps;         // of the first rank
  std::vector<Finding> warnings;
  std::vector<TrainingOutcome> outcomes; // of each rank
  FullTensors parameters;                // in float32
  std::optional<Finding> failure;
};

class Observer final : public TrainingObserver {
 public:
  explicit Observer(Ran& ran, std::function<void(const StepReport&)> on_each) : ran_(ran), on_each_(std::move(on_each)) {}
  void on_step(const StepReport& report) override {
    ran_.steps.push_back(report);
    if (on_each_) on_each_(report);
  }
  void on_saved(const SaveReport&) override {}
  void on_warning(const Finding& finding) override { ran_.warnings.push_back(finding); }

 private:
  Ran& ran_;
  std::function<void(const StepReport&)> on_each_;
};

class TrainerRun : public testing::Test {
 protected:
  TrainerRun() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the cat sat on mat " + std::to_string(i * 7 % 13) + ". ";
    put_file(dir_ / "text.txt", text);
    put_file(dir_ / "other.txt", "a dog ran to the hat 3. the cat sat on it. " + text.substr(0, 500));
  }

  TrainConfig config(const std::vector<std::string>& assignments = {}) const {
    constexpr const char* kText = R"({
      "model": {"config": {"model_type": "llama", "vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
                           "num_attention_heads": 2, "attention_dropout": 0.1}},
      "data": {"files": ["text.txt"], "sequence_length": 16, "micro_batch_size": 2},
      "optimizer": {"lr": 1e-2},
      "schedule": {"kind": "cosine", "warmup_steps": 2},
      "precision": {"param_dtype": "float32"},
      "training": {"steps": 5, "micro_batches": 4, "seed": 3}
    })";
    return parse_train_config(kText, dir_ / "c.json", assignments);
  }

  // `signal` may be set while it runs.
  static Ran run(TrainConfig config, int ranks, std::atomic<int>* signal = nullptr, std::function<void(const StepReport&)> on_each = {}) {
    fit_to_world(config, ranks);
    Ran ran;
    ran.outcomes.resize(static_cast<size_t>(ranks));
    std::mutex mutex;
    const FormatList none;
    const RankResults results = run_ranks(ranks, [&](Communicator& world) {
      Mesh mesh;
      if (ranks > 1 && config.sharding.shards > 1) mesh.shard = &world;
      if (ranks > 1 && config.sharding.shards == 1) mesh.replicate = &world;
      const std::unique_ptr<Device> device = open_device("cpu");
      TrainerOptions options;
      options.signal = signal;
      Trainer trainer(config, {world, mesh, nullptr}, *device, none, options);
      Observer observer(ran, on_each);
      ran.outcomes[static_cast<size_t>(world.rank())] = trainer.run(observer);
      const std::lock_guard lock(mutex);
      for (ParameterShard* shard : trainer.model().shards()) collect(ran.parameters, *shard);
    });
    for (const auto& finding : results.findings) {
      if (finding) ran.failure = finding;
    }
    return ran;
  }

  static void collect(FullTensors& into, ParameterShard& shard) {
    const ShardInfo& info = shard.info();
    std::vector<float>& whole = into[info.fqn];
    whole.resize(element_count(info.shape));
    const at::Tensor values = shard.local().to(at::kFloat);
    if (info.count() > 0) std::memcpy(whole.data() + info.begin, values.const_data_ptr<float>(), info.count() * sizeof(float));
  }

  static void expect_same(const Ran& a, const Ran& b) {
    ASSERT_FALSE(a.failure) << Error(*a.failure).what();
    ASSERT_FALSE(b.failure) << Error(*b.failure).what();
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (size_t i = 0; i < a.steps.size(); ++i) {
      EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
      EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << i;
    }
    EXPECT_EQ(a.parameters, b.parameters);
  }

  TempDir dir_;
};

TEST_F(TrainerRun, LearnsAndSaysSo) {
  set_compute_threads(1);
  const Ran ran = run(config({"training.steps=20"}), 1);
  ASSERT_EQ(ran.steps.size(), 20u);
  EXPECT_LT(ran.steps.back().loss, ran.steps.front().loss - 1);
  EXPECT_EQ(ran.steps[0].step, 1u);
  EXPECT_DOUBLE_EQ(ran.steps[0].lr, 5e-3);   // half way through the warm-up
  EXPECT_DOUBLE_EQ(ran.steps[1].lr, 1e-2);
  EXPECT_LT(ran.steps.back().lr, 2e-4);
  EXPECT_EQ(ran.steps[0].tokens, 4u * 2 * 16);
  EXPECT_EQ(ran.steps[1].tokens, 2u * 4 * 2 * 16);
  EXPECT_GT(ran.steps[0].tokens_per_second, 0);
  EXPECT_GT(ran.steps[0].peak_memory, 1u << 20);
  EXPECT_EQ(ran.outcomes[0].step, 20u);
  EXPECT_EQ(ran.outcomes[0].signal, 0);
}

TEST_F(TrainerRun, ARerunGivesTheSameBits) {
  set_compute_threads(1);
  const TrainConfig bfloat16 = config({"precision.param_dtype=bfloat16"});
  expect_same(run(bfloat16, 2), run(bfloat16, 2));
}

// W ranks with a micro-batch each, and one rank with W of them in the same order.
TEST_F(TrainerRun, TheWorldSizeDoesNotMatterWhereMicroBatchesAreTheSame) {
  set_compute_threads(1);
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TrainConfig both = config({"training.micro_batches=2", std::string("precision.param_dtype=") + dtype});
    expect_same(run(both, 2), run(both, 1));
  }
  const TrainConfig four = config();
  expect_same(run(four, 4), run(four, 1));
}

TEST_F(TrainerRun, HowParametersAreHeldDoesNotMatter) {
  set_compute_threads(1);
  const Ran usual = run(config(), 2);
  for (const char* other : {"sharding.placement=per_parameter", "sharding.offload_parameters=true", "sharding.prefetch=false",
                            "sharding.activation_checkpointing=true", "sharding.wrap=[]", "sharding.replicas=2"}) {
    SCOPED_TRACE(other);
    expect_same(run(config({other}), 2), usual);
  }
}

TEST_F(TrainerRun, ValidationChangesNothingAndIsTheSameForEveryWorldSize) {
  set_compute_threads(1);
  const std::vector<std::string> validated = {"validation.interval=2", "validation.files=[\"other.txt\"]", "validation.batches=3"};
  const Ran with = run(config(validated), 2);
  expect_same(with, run(config(), 2));
  EXPECT_FALSE(with.steps[0].validation_loss);
  ASSERT_TRUE(with.steps[1].validation_loss);
  ASSERT_TRUE(with.steps[3].validation_loss);
  EXPECT_LT(*with.steps[3].validation_loss, *with.steps[1].validation_loss);
  EXPECT_EQ(run(config(validated), 4).steps[0].loss, run(config(), 4).steps[0].loss);
  // Four ranks, three batches: nobody counts twice.
  std::vector<std::string> first = validated;
  first[0] = "validation.interval=1";
  EXPECT_NEAR(*run(config(first), 4).steps[0].validation_loss, *run(config(first), 1).steps[0].validation_loss, 1e-6);
}

TEST_F(TrainerRun, TooManySkippedStepsEndIt) {
  set_compute_threads(1);
  const Ran ran = run(config({"precision.param_dtype=float16", "loss_scale.initial_scale=1e30", "loss_scale.max_scale=0",
                              "loss_scale.min_scale=1e29", "training.max_consecutive_skips=3"}),
                      2);
  ASSERT_TRUE(ran.failure);
  EXPECT_EQ(ran.failure->code, Exit::failed);
  EXPECT_EQ(ran.failure->what, "too many steps skipped in a row");
  EXPECT_THAT(ran.failure->found, HasSubstr("the last good checkpoint is none"));
  ASSERT_EQ(ran.steps.size(), 3u);
  EXPECT_TRUE(ran.steps[0].skipped);
  EXPECT_DOUBLE_EQ(ran.steps[2].lr, 1e-2);   // no step was taken, so the schedule has not begun
  ASSERT_EQ(ran.warnings.size(), 3u);
  EXPECT_EQ(ran.warnings[0].where.key, "step 1");
}

TEST_F(TrainerRun, ASignalEndsItAfterTheStep) {
  set_compute_threads(1);
  std::atomic<int> signal = 0;
  const Ran ran = run(config({"training.steps=100"}), 2, &signal, [&](const StepReport& report) {
    if (report.step == 3) signal = 15;
  });
  ASSERT_FALSE(ran.failure);
  for (const TrainingOutcome& outcome : ran.outcomes) {
    EXPECT_EQ(outcome.signal, 15);
    // The other rank may be in its fourth step when it comes, but all end after the same one.
    EXPECT_EQ(outcome.step, ran.outcomes[0].step);
    EXPECT_GE(outcome.step, 4u);
    EXPECT_LE(outcome.step, 5u);
  }
}

TEST_F(TrainerRun, DataThatDoesNotFitEndsEveryRank) {
  set_compute_threads(1);
  const Ran small = run(config({"model.config.vocab_size=100"}), 2);   // text has bytes above
  ASSERT_TRUE(small.failure);
  EXPECT_EQ(small.failure->what, "token id is not in the vocabulary");
  EXPECT_EQ(small.failure->code, Exit::usage);
  EXPECT_TRUE(small.steps.empty());
  const Ran missing = run(config({"data.files=[\"none.txt\"]"}), 2);
  ASSERT_TRUE(missing.failure);
  EXPECT_EQ(missing.failure->code, Exit::failed);
  const Ran tiny = run(config({"data.sequence_length=100000"}), 2);
  ASSERT_TRUE(tiny.failure);
  EXPECT_EQ(tiny.failure->what, "the data is shorter than one sequence");
}

}  // namespace
}  // namespace fsdpctl::train
