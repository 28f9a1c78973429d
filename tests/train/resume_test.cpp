#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <filesystem>

#include "formats/all_formats.h"
#include "lib/base/file.h"
#include "lib/ckpt/manifest.h"
#include "lib/ckpt/verify.h"
#include "tests/support/temp_dir.h"
#include "tests/train/run_to_save.h"

namespace fsdpctl::train {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Losses = std::vector<double>;

const FormatList& formats() {
  static const FormatList all = all_formats();
  return all;
}

SaverOptions saving(std::string_view format = "dcp") {
  SaverOptions options;
  options.format = find_format(formats(), format);
  options.patience = Milliseconds(20'000);
  return options;
}

RestoreReport restore(RankOfRun& rank, const std::string& path, const RestoreOptions& options = {}) {
  FindingSink sink(/*strict=*/false);
  Opened opened = find_latest(formats(), path, sink);
  return restore_training_state(opened.checkpoint, *rank.state, rank.world, options);
}

// Trains 2 steps, saves, trains 3 more. Returns the last losses; `saved` is the state that was saved, `end` that of the end.
Losses train_and_save(const RunToSave& run, const std::string& path, WholeState* saved = nullptr, WholeState* end = nullptr,
                      std::string_view format = "dcp") {
  Losses losses;
  on_all_ranks(run, [&](RankOfRun& rank) {
    rank.steps(2);
    if (saved != nullptr) saved->add(rank);
    TrainingSaver saver(*rank.state, rank.world, rank.store, saving(format));
    saver.save(path);
    const Losses more = rank.steps(3);
    if (end != nullptr) end->add(rank);
    if (rank.world.rank() == 0) losses = more;
  });
  return losses;
}

Losses resume(const RunToSave& run, const std::string& path, WholeState* loaded = nullptr, WholeState* end = nullptr,
              const RestoreOptions& options = {}) {
  Losses losses;
  on_all_ranks(run, [&](RankOfRun& rank) {
    rank.steps(1);   // so that there is a state to be overwritten
    load_fsdp_optimizer(*rank.optimizer).wait();
    restore(rank, path, options);
    if (loaded != nullptr) loaded->add(rank);
    const Losses more = rank.steps(3);
    if (end != nullptr) end->add(rank);
    if (rank.world.rank() == 0) losses = more;
  });
  return losses;
}

void expect_same(const WholeState& a, const WholeState& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, values] : a.tensors) {
    const auto found = b.tensors.find(name);
    ASSERT_NE(found, b.tensors.end()) << name;
    ASSERT_EQ(values.size(), found->second.size()) << name;
    EXPECT_EQ(std::memcmp(values.data(), found->second.data(), values.size() * sizeof(float)), 0) << name;
  }
}

struct Kind {
  const char* name;
  RunToSave run;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  const auto add = [&](const char* name) -> RunToSave& { return all.emplace_back(Kind{name, {}}).run; };
  add("Flat");
  add("PerParameter").placement = ShardPlacement::per_parameter;
  add("Bf16").compute = DType::bfloat16;
  RunToSave& fp16 = add("Fp16");
  fp16.compute = DType::float16;
  fp16.placement = ShardPlacement::per_parameter;
  fp16.optimizer.scaler = default_scaler(DType::float16);
  fp16.optimizer.scaler->initial_scale = 16777216;   // overflows in the first step, and in no other
  fp16.optimizer.scaler->backoff_factor = 1.0 / 256;
  fp16.optimizer.scaler->hysteresis = 1;
  RunToSave& offloaded = add("Offloaded");
  offloaded.compute = DType::bfloat16;
  offloaded.offload_parameters = true;
  RunToSave& moments = add("OffloadedMoments");
  moments.compute = DType::bfloat16;
  moments.offload_moments = true;
  RunToSave& frozen = add("Frozen");
  frozen.compute = DType::bfloat16;
  frozen.frozen = "layers.1.up.weight";
  RunToSave& tied = add("Tied");
  tied.tied = true;
  tied.placement = ShardPlacement::per_parameter;
  RunToSave& sgd = add("Sgd");
  sgd.optimizer.optimizer.kind = OptimizerKind::sgd;
  sgd.optimizer.optimizer.defaults.momentum = 0.9;
  RunToSave& adam = add("Adam");
  adam.optimizer.optimizer.kind = OptimizerKind::adam;
  RunToSave& hsdp = add("Hsdp");
  hsdp.replicas = 2;
  hsdp.placement = ShardPlacement::per_parameter;
  RunToSave& whole = add("NoShard");
  whole.shards = 1;
  whole.replicas = 2;
  return all;
}

class Resume : public testing::TestWithParam<Kind> {
 protected:
  TempDir dir{TempDir::Place::memory};
};
INSTANTIATE_TEST_SUITE_P(Of, Resume, testing::ValuesIn(kinds()), [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(Resume, AtTheSameWorldSizeIsTheUninterruptedRun) {
  WholeState saved, loaded, end, resumed_end;
  const Losses expected = train_and_save(GetParam().run, dir / "step-2", &saved, &end);
  const Losses losses = resume(GetParam().run, dir / "step-2", &loaded, &resumed_end);
  expect_same(saved, loaded);
  EXPECT_EQ(losses, expected);
  expect_same(end, resumed_end);
}

// Other ranks hold the same numbers; what they then add up they add in another order.
TEST_P(Resume, AtAnotherWorldSizeLoadsTheSameBits) {
  WholeState saved, loaded;
  const Losses expected = train_and_save(GetParam().run, dir / "step-2", &saved);
  for (const int shards : {1, 4}) {
    RunToSave other = GetParam().run;
    other.shards = shards;
    other.replicas = 1;
    other.placement = shards == 1 ? ShardPlacement::flat : ShardPlacement::per_parameter;
    WholeState loaded_here;
    const Losses losses = resume(other, dir / "step-2", &loaded_here);
    expect_same(saved, loaded_here);
    ASSERT_EQ(losses.size(), expected.size());
    const double bound = other.compute == DType::float32 ? 1e-6 : 1e-2;
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected[i], 1, bound) << i;
  }
}

TEST_P(Resume, WhatIsSavedIsWholeAndNamesAreTheFields) {
  train_and_save(GetParam().run, dir / "step-2");
  FindingSink sink;
  Opened opened = find_latest(formats(), dir.path(), sink);
  EXPECT_EQ(opened.chosen, "step-2");
  EXPECT_TRUE(opened.passed_over.empty());
  const Checkpoint& c = opened.checkpoint;
  const auto manifest = find_manifest(c, sink);
  ASSERT_TRUE(manifest.has_value());
  EXPECT_EQ(c.tree.find("step")->as_integer(), 2);
  EXPECT_EQ(c.tree.find("samples")->as_integer(), 16);
  EXPECT_EQ(c.tree.find("config")->text(), GetParam().run.config);
  ASSERT_TRUE(c.find("model.layers.0.up.weight"));
  const TensorInfo& weight = c.tensors[*c.find("model.layers.0.up.weight")];
  EXPECT_EQ(weight.dtype, DType::float32);   // the master
  if (GetParam().run.compute == DType::float16) {
    EXPECT_EQ(c.tree.find("scaler")->find("scale")->as_real(), 65536);   // backed off once
    EXPECT_EQ(c.tree.find("scaler")->find("_growth_tracker")->as_integer(), 1);
    EXPECT_EQ(c.tree.find("scheduler")->find("last_epoch")->as_integer(), 1);
  }
  if (GetParam().run.tied) {
    EXPECT_TRUE(c.find("model.head.weight"));   // PyTorch looks for both names
    EXPECT_FALSE(c.find("optimizer.state.head.weight.exp_avg"));
  }
  const bool sgd = GetParam().run.optimizer.optimizer.kind == OptimizerKind::sgd;
  EXPECT_TRUE(c.find(sgd ? "optimizer.state.layers.0.up.weight.momentum_buffer" : "optimizer.state.layers.0.up.weight.exp_avg_sq"));
  EXPECT_EQ(manifest->source_format, "training");
  EXPECT_TRUE(manifest->read_back);
}

TEST_P(Resume, FromACopyMadeInTheBackground) {
  WholeState saved, loaded;
  on_all_ranks(GetParam().run, [&](RankOfRun& rank) {
    SaverOptions options = saving();
    options.background = true;
    TrainingSaver saver(*rank.state, rank.world, rank.store, options);
    rank.steps(2);
    saved.add(rank);
    EXPECT_FALSE(saver.start(dir / "step-2"));
    rank.steps(2);   // while it is written
    const auto first = saver.start(dir / "step-4");
    ASSERT_TRUE(first);
    EXPECT_EQ(first->step, 2u);
    EXPECT_TRUE(first->background);
    rank.steps(1);
    EXPECT_EQ(saver.wait()->step, 4u);
    EXPECT_FALSE(saver.wait());
  });
  resume(GetParam().run, dir / "step-2", &loaded);
  expect_same(saved, loaded);
}

}  // namespace
}  // namespace fsdpctl::train
