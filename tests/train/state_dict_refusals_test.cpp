// What load_state_dict() refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/error_of.h"
#include "tests/train/made_state_dict.h"

namespace fsdpctl::train {
namespace {

using testing::HasSubstr;

// Each refusal leaves everything as it was, on every rank.

// What loading `dict` on the last of two ranks throws; the first one's is good.
Finding refusal(const std::function<StateDict(const StateDict&)>& tamper, const LoadOptions& load = {},
                const RunOptions& options = options_of(OptimizerKind::adamw)) {
  std::vector<Finding> findings(2);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun source(ranks, options_of(OptimizerKind::adamw)), target(ranks, options);
    source.step(0);
    target.step(5);
    const auto before = target.everything();
    const float scale = target.optimizer->scaler().scale();
    const uint64_t growth = target.optimizer->scaler().growth_step();
    const StateDict good = source.optimizer->state_dict();
    const StateDict dict = ranks.rank() == 1 ? tamper(good) : good;
    findings[static_cast<size_t>(ranks.rank())] = error_of([&] { target.optimizer->load_state_dict(dict, load); });
    EXPECT_EQ(target.everything(), before);
    EXPECT_EQ(target.optimizer->scaler().scale(), scale);
    EXPECT_EQ(target.optimizer->scaler().growth_step(), growth);
    EXPECT_EQ(target.optimizer->schedule().taken(), 1u);
    target.step(6);
  }));
  EXPECT_EQ(findings[0].what, findings[1].what);
  EXPECT_EQ(findings[0].where.rank, 1);
  return findings[1];
}

TEST(StateDict, WhatIsMissingIsNamed) {
  const std::vector<std::vector<std::string>> paths = {
      {"grad_scaler"}, {"base_optim_states"}, {"flat_fp32_weights"}, {"grad_scaler", "_scale"}, {"grad_scaler", "_hysteresis_step"},
      {"base_optim_states", "state"}, {"base_optim_states", "param_groups"}, {"meta", "version"}, {"meta", "names"},
      {"meta", "offsets"}, {"meta", "global_shapes"}, {"meta", "scaler"}, {"meta", "scaler", "hysteresis"}, {"meta", "lr_schedule"}};
  for (const auto& path : paths) {
    const Finding finding = refusal([&](const StateDict& dict) { return without(dict, path); });
    EXPECT_EQ(finding.code, Exit::damaged) << finding.what;
    EXPECT_THAT(finding.where.key, HasSubstr(path.back()));
  }
}

TEST(StateDict, WhatIsMalformedIsNamed) {
  const auto code_of = [](const std::vector<std::string>& path, const std::optional<Value>& value) {
    return refusal([&](const StateDict& dict) { return with(dict, path, value); }).code;
  };
  const std::string base = "base_optim_states";
  EXPECT_EQ(code_of({"grad_scaler", "_scale"}, Value::string("big")), Exit::damaged);
  EXPECT_EQ(code_of({"grad_scaler", "_scale"}, Value::real(-1)), Exit::damaged);
  EXPECT_EQ(code_of({"grad_scaler", "_growth_step"}, Value::integer(-3)), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "step"}, Value::real(0.5)), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "step"}, Value::real(0)), Exit::damaged);       // with moments
  EXPECT_EQ(code_of({base, "state", "0", "step"}, Value::string("7")), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "exp_avg"}, std::nullopt), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "exp_avg"}, Value::tensor({4'000'000, false, false})), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0"}, Value::integer(1)), Exit::damaged);
  EXPECT_EQ(code_of({base, "param_groups", "0", "params", "1"}, Value::integer(7)), Exit::damaged);
  EXPECT_EQ(code_of({base, "param_groups", "0", "betas"}, Value::real(1)), Exit::damaged);
  EXPECT_EQ(code_of({base, "param_groups", "0", "lr"}, Value::string("1")), Exit::damaged);
  EXPECT_EQ(code_of({"flat_fp32_weights", "0"}, Value::integer(1)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "names", "0", "1"}, Value::string("layer.weight")), Exit::damaged);   // twice
  EXPECT_EQ(code_of({"meta", "offsets", "0", "1"}, Value::integer(1000)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "offsets", "0", "1"}, Value::integer(-1)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "global_shapes", "0", "1", "0"}, Value::integer(int64_t{1} << 62)), Exit::refused);   // another shape
  EXPECT_EQ(code_of({"meta", "global_shapes", "0", "0", "0"}, Value::integer(int64_t{1} << 62)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "version"}, Value::integer(2)), Exit::unsupported);
}

TEST(StateDict, OptionsThatThisOptimizerLacksAreRefused) {
  for (const char* option : {"amsgrad", "maximize"}) {
    const Finding finding = refusal([&](const StateDict& dict) {
      return with(dict, {"base_optim_states", "param_groups", "0", option}, Value::boolean(true));
    });
    EXPECT_EQ(finding.code, Exit::refused);
    EXPECT_THAT(finding.where.key, HasSubstr(option));
  }
  const Finding finding = refusal([&](const StateDict& dict) {
    return with(dict, {"base_optim_states", "param_groups", "0", "decoupled_weight_decay"}, Value::boolean(false));
  });
  EXPECT_EQ(finding.found, "Adam");
}

TEST(StateDict, AShardOfOneElementIsNotSpreadOverAnother) {
  const Finding finding = refusal([](const StateDict& dict) {
    StateDict bad = dict;
    for (const auto& path : {std::vector<std::string>{"flat_fp32_weights", "0", "0"}, {"base_optim_states", "state", "0", "exp_avg"},
                             {"base_optim_states", "state", "0", "exp_avg_sq"}}) {
      const Value one = bad.add(make_state_tensor(DType::float32, {1}, std::vector<float>{5}));
      bad.tree = changed(bad.tree, path, one);
    }
    return bad;
  });
  EXPECT_EQ(finding.code, Exit::refused);
  EXPECT_EQ(finding.where.key, "layer.weight");
}

TEST(StateDict, AnotherRanksDictIsRefused) {
  const std::vector<StateDict> saved = saved_by(2, ShardPlacement::flat, OptimizerKind::adamw);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(saved[static_cast<size_t>(1 - ranks.rank())]); });
    EXPECT_EQ(finding.what, "saved optimizer state lacks elements that this rank holds");
    EXPECT_EQ(finding.where.rank, 0);
    run.optimizer->load_state_dict(saved[static_cast<size_t>(ranks.rank())]);
  }));
}

TEST(StateDict, RanksAtDifferentStepsAreRefused) {
  const std::vector<StateDict> early = saved_by(2, ShardPlacement::flat, OptimizerKind::adamw, 2);
  const std::vector<StateDict> late = saved_by(2, ShardPlacement::flat, OptimizerKind::adamw, 3);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const auto before = run.everything();
    const Finding finding =
        error_of([&] { run.optimizer->load_state_dict(ranks.rank() == 0 ? early[0] : late[1]); });
    EXPECT_EQ(finding.what, "ranks were given optimizer states of different steps");
    EXPECT_EQ(run.everything(), before);
    const std::vector<const StateDict*> mixed = {&early[0], &late[1]};
    EXPECT_EQ(error_of([&] { run.optimizer->load_state_dict(mixed); }).what, "shards of a parameter are of different steps");
  }));
}

TEST(StateDict, AnotherOptimizersIsRefused) {
  const std::vector<StateDict> sgd = saved_by(1, ShardPlacement::flat, OptimizerKind::sgd);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(sgd[0]); });
    EXPECT_EQ(finding.code, Exit::refused);
  }));
}

TEST(StateDict, AnotherScalerIsRefusedUnlessTold) {
  const std::vector<StateDict> saved = saved_by(1, ShardPlacement::flat, OptimizerKind::adamw);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    RunOptions options = options_of(OptimizerKind::adamw);
    options.optimizer.scaler = default_scaler(DType::bfloat16);
    options.optimizer.scaler->growth_interval = 7;
    MadeRun run(ranks, options);
    const auto before = run.everything();
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(saved[0]); });
    EXPECT_EQ(finding.code, Exit::refused);
    EXPECT_THAT(finding.found, HasSubstr("growth_interval: 7, 1000"));
    EXPECT_EQ(run.everything(), before);
    LoadOptions told;
    told.other_scaler = true;
    run.optimizer->load_state_dict(saved[0], told);
    EXPECT_EQ(run.optimizer->scaler().growth_step(), 3u);
    EXPECT_EQ(run.optimizer->scaler().options().growth_interval, 7u);
  }));
}

}  // namespace
}  // namespace fsdpctl::train
