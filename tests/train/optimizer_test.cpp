// What a step of FSDPadaptOptimizer does and does not do, on ranks that are threads.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "tests/support/error_of.h"
#include "tests/train/made_run.h"

namespace fsdpctl::train {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

RunOptions half_options() {
  RunOptions options;
  options.dtype = at::kHalf;
  options.optimizer = made_options();
  GradScalerOptions scaler;
  scaler.initial_scale = 1024;
  scaler.hysteresis = 1;
  options.optimizer.scaler = scaler;
  options.optimizer.schedule = {LrScheduleOptions::Kind::linear, 0, 10, 0};
  return options;
}

TEST(Step, OverflowOnOneRankSkipsItEverywhereAndChangesNothingButTheScale) {
  for (const float poison : {kInf, -kInf, kNan}) {
    for (int where = 0; where < 3; ++where) {
      expect_all_well(run_ranks(3, [&](Communicator& ranks) {
        MadeRun run(ranks, half_options());
        EXPECT_TRUE(run.step(0));
        const auto before = run.everything();
        run.set_gradients(1);
        if (ranks.rank() == where) run.model[0].grad.mutable_data_ptr<float>()[0] = poison;
        EXPECT_FALSE(run.optimizer->step());
        EXPECT_EQ(run.everything(), before);
        EXPECT_EQ(run.optimizer->loss_scale().const_data_ptr<float>()[0], 512);
        EXPECT_EQ(run.optimizer->schedule().taken(), 1u);
        EXPECT_EQ(run.optimizer->skipped_in_a_row(), 1u);
        EXPECT_EQ(run.optimizer->last_grad_norm(), std::numeric_limits<double>::infinity());
        EXPECT_FALSE(run.model[0].grad.defined());
        EXPECT_TRUE(run.step(2));
        EXPECT_NE(run.everything(), before);
        EXPECT_EQ(run.optimizer->skipped_in_a_row(), 0u);
      }));
    }
  }
}

TEST(Step, OverflowInAReplicaThatIsNotCountedSkipsToo) {
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    RunOptions options = half_options();
    options.replicas = 2;
    MadeRun run(ranks, options);
    run.set_gradients(0);
    if (ranks.rank() == 1) run.model[2].grad.mutable_data_ptr<float>()[3] = kNan;
    EXPECT_FALSE(run.optimizer->step());
  }));
}

TEST(Step, ParametersWithoutGradientAreLeftAlone) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    expect_all_well(run_ranks(2, [&](Communicator& ranks) {
      RunOptions options;
      options.optimizer = made_options(kind);
      MadeRun run(ranks, options);
      const std::vector<float> before = run.master(1);
      run.set_gradients(0);
      run.model[1].grad = at::Tensor();
      EXPECT_TRUE(run.optimizer->step());
      EXPECT_EQ(run.master(1), before);
      EXPECT_EQ(run.optimizer->state().step(1), 0u);
      EXPECT_EQ(run.optimizer->state_dict().tree.find("base_optim_states")->find("state")->entries().size(), 2u);
      EXPECT_TRUE(run.step(1));
      const auto moments = run.moment(1, 0);
      const std::vector<float> after = run.master(1);
      run.set_gradients(2);
      run.model[1].grad = at::Tensor();
      EXPECT_TRUE(run.optimizer->step());
      EXPECT_EQ(run.moment(1, 0), moments);
      EXPECT_EQ(run.master(1), after);
      EXPECT_EQ(run.optimizer->state().step(1), 1u);
      EXPECT_EQ(run.optimizer->state().step(0), 3u);
    }));
  }
}

TEST(Step, AGradientOnOneRankIsOneForAll) {
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    RunOptions options;
    options.optimizer = made_options();
    MadeRun some(ranks, options), zeros(ranks, options);
    some.set_gradients(0);
    zeros.set_gradients(0);
    if (ranks.rank() == 1) {   // no gradient, and one of zeros
      some.model[0].grad = at::Tensor();
      zeros.model[0].grad.zero_();
    }
    EXPECT_TRUE(some.optimizer->step());
    EXPECT_TRUE(zeros.optimizer->step());
    EXPECT_EQ(some.everything(), zeros.everything());
    EXPECT_EQ(some.optimizer->state().step(0), 1u);
    // Reduced zeros that no backward asked for are no gradient.
    zeros.set_gradients(1);
    zeros.model[0].grad.zero_();
    zeros.model[0].says_has_gradient = false;
    const std::vector<float> before = zeros.master(0);
    EXPECT_TRUE(zeros.optimizer->step());
    EXPECT_EQ(zeros.master(0), before);
  }));
}

// The masters of all ranks, whole, after some steps; and the norms.
std::pair<std::vector<std::vector<float>>, std::vector<double>> train(int world, ShardPlacement placement, int replicas,
                                                                      OptimizerKind kind, at::ScalarType gradients) {
  std::vector<std::vector<float>> whole;
  for (const Made& made : made_parameters()) whole.emplace_back(made.count);
  std::vector<double> norms;
  std::mutex mutex;
  expect_all_well(run_ranks(world, [&](Communicator& ranks) {
    RunOptions options;
    options.placement = placement;
    options.replicas = replicas;
    options.optimizer = made_options(kind);
    MadeRun run(ranks, options);
    std::vector<double> mine;
    for (uint64_t step = 0; step < 3; ++step) {
      EXPECT_TRUE(run.step(step, gradients));
      mine.push_back(run.optimizer->last_grad_norm());
    }
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(norms.empty() || norms == mine);
    norms = mine;
    for (size_t i = 0; i < whole.size(); ++i) {
      const std::vector<float> part = run.master(i);
      std::copy(part.begin(), part.end(), whole[i].begin() + static_cast<std::ptrdiff_t>(run.model[i].description.begin));
    }
  }));
  return {whole, norms};
}

// DTENSOR_SUPPORTED: the placement selects how the norm is read, and both ways agree to the bit; so do all world sizes.
TEST(Step, PlacementWorldSizeAndReplicasGiveTheSameBits) {
  static_assert(DTENSOR_SUPPORTED);
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    for (const at::ScalarType gradients : {at::kFloat, at::kBFloat16}) {
      const auto reference = train(1, ShardPlacement::flat, 1, kind, gradients);
      double squares = 0;
      for (size_t i = 0; i < 3; ++i) {
        for (const float g : made_numbers(100 + i, made_parameters()[i].count)) squares += static_cast<double>(g) * g;
      }
      EXPECT_NEAR(reference.second[0], std::sqrt(squares), gradients == at::kFloat ? 1e-12 : 1e-2);
      for (const ShardPlacement placement : {ShardPlacement::flat, ShardPlacement::per_parameter}) {
        for (int world = 1; world <= 4; ++world) EXPECT_EQ(train(world, placement, 1, kind, gradients), reference);
        EXPECT_EQ(train(4, placement, 2, kind, gradients), reference);
        EXPECT_EQ(train(3, placement, 3, kind, gradients), reference);
      }
    }
  }
}

TEST(Step, ClippingHasTheThresholdThatWasSetLast) {
  const auto change_of = [](double max_norm, bool by_setter) {
    double change = 0;
    expect_all_well(run_ranks(1, [&](Communicator& ranks) {
      RunOptions options;
      options.optimizer = made_options(OptimizerKind::sgd);
      options.optimizer.optimizer.defaults = {1.0, 0, 0, 0, 0, 0};   // w -= clipped gradient
      if (!by_setter) options.optimizer.max_norm = max_norm;
      options.dtype = at::kFloat;
      MadeRun run(ranks, options);
      if (by_setter) run.optimizer->clip_grad_norm(run.model, max_norm);
      for (int repeat = 0; repeat < 2; ++repeat) {   // for good
        std::vector<std::vector<float>> before;
        for (size_t i = 0; i < 3; ++i) before.push_back(run.master(i));
        EXPECT_TRUE(run.step(0));
        double squares = 0;
        for (size_t i = 0; i < 3; ++i) {
          const std::vector<float> after = run.master(i);
          for (size_t k = 0; k < after.size(); ++k) squares += std::pow(static_cast<double>(after[k]) - before[i][k], 2);
        }
        change = std::sqrt(squares);
        EXPECT_GT(run.optimizer->last_grad_norm(), 1);   // unclipped
        if (max_norm == 0) {
          EXPECT_NEAR(change, run.optimizer->last_grad_norm(), 1e-5);
        }
      }
    }));
    return change;
  };
  for (const bool by_setter : {false, true}) {
    EXPECT_NEAR(change_of(0.25, by_setter), 0.25, 1e-5);
    EXPECT_NEAR(change_of(1, by_setter), 1, 1e-5);
    EXPECT_GT(change_of(0, by_setter), 1.1);
  }
}

TEST(Step, ClippingRefusesForeignModelsAndImpossibleThresholds) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks), other(ranks);
    EXPECT_EQ(error_of([&] { run.optimizer->clip_grad_norm(other.model, 0.5); }).code, Exit::usage);
    EXPECT_EQ(error_of([&] { run.optimizer->clip_grad_norm(run.model, -1); }).where.key, "max_norm");
    EXPECT_EQ(error_of([&] { run.optimizer->clip_grad_norm(run.model, kNan); }).where.key, "max_norm");
    EXPECT_EQ(run.optimizer->max_norm(), 1);
  }));
}

TEST(Step, ParametersInFp32AreTheirMastersAndGradientsStayAsTheyAre) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    RunOptions options;
    options.dtype = at::kFloat;
    options.optimizer = made_options();
    MadeRun run(ranks, options);
    EXPECT_EQ(run.optimizer->state().master(0), run.model[0].values.const_data_ptr<float>());
    EXPECT_EQ(run.device().use(Place::device).bytes, 0u);   // no second copy
    run.set_gradients(0);
    const at::Tensor gradient = run.model[0].grad;
    const std::vector<float> as_given = values_of<float>(gradient), before = run.master(0);
    EXPECT_TRUE(run.optimizer->step());
    EXPECT_EQ(values_of<float>(gradient), as_given);
    EXPECT_NE(run.master(0), before);
  }));
}

TEST(Step, FirstMastersMayBeBetterThanTheParameters) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    const std::vector<float> precise = {0.1f, 0.2f, 1 / 3.0f};
    for (const bool given : {false, true}) {
      MadeModel model;
      MadeShard& shard = model.add(cut("w", {3}, 0, 1), made_tensor(at::kBFloat16, precise));
      if (given) shard.first_master = tensor_of(at::kFloat, precise);
      const auto device = open_device("cpu");
      FSDPadaptOptimizer optimizer(model, ranks, *device, {});
      const std::vector<float> master(optimizer.state().master(0), optimizer.state().master(0) + 3);
      EXPECT_EQ(master == precise, given);
    }
  }));
}

TEST(Step, MastersFollowTheModelWhenAsked) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    EXPECT_TRUE(run.step(0));
    std::memset(run.model[0].values.mutable_data_ptr(), 0, run.model[0].values.nbytes());
    run.optimizer->refresh_masters_from_model();
    EXPECT_EQ(run.master(0), std::vector<float>(21, 0));
  }));
}

TEST(Step, TheSignalToStopReachesAllRanks) {
  expect_all_well(run_ranks(3, [&](Communicator& ranks) {
    MadeRun run(ranks);
    EXPECT_TRUE(run.step(0));
    EXPECT_EQ(run.optimizer->stop_agreed(), 0);
    if (ranks.rank() == 1) run.optimizer->request_stop(15);
    EXPECT_EQ(run.optimizer->stop_agreed(), 0);
    EXPECT_TRUE(run.step(1));
    EXPECT_EQ(run.optimizer->stop_agreed(), 15);
  }));
}

TEST(Step, WhatFailsOnOneRankFailsOnAll) {
  const RankResults results = run_ranks(2, [&](Communicator& ranks) {
    MadeRun run(ranks);
    run.set_gradients(0);
    if (ranks.rank() == 1) run.model[1].grad = tensor_of(at::kFloat, std::vector<float>(17, 1.0f));
    run.optimizer->step();
  });
  for (const auto& finding : results.findings) {
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->where.rank, 1);
    EXPECT_EQ(finding->where.key, "layer.bias");
    EXPECT_THAT(finding->saw_text(), HasSubstr("[17]"));
  }
}

TEST(Step, RanksThatDisagreeAboutParametersOrOptionsAreTold) {
  const auto expect_refused = [](const std::function<void(RunOptions&)>& change) {
    const RankResults results = run_ranks(2, [&](Communicator& ranks) {
      RunOptions options;
      if (ranks.rank() == 1) change(options);
      MadeRun run(ranks, options);
    });
    for (const auto& finding : results.findings) {
      ASSERT_TRUE(finding);
      EXPECT_EQ(finding->where.rank, 1);
    }
  };
  expect_refused([](RunOptions& o) { o.optimizer.optimizer.kind = OptimizerKind::adam; });
  expect_refused([](RunOptions& o) { o.optimizer.optimizer.defaults.lr = 1; });
  expect_refused([](RunOptions& o) { o.optimizer.max_norm = 2; });
  expect_refused([](RunOptions& o) { o.optimizer.optimizer.rules = {{"layer.*", 0.5, {}, {}, {}, {}, {}}}; });
  expect_refused([](RunOptions& o) { o.optimizer.scaler = GradScalerOptions{}; });
  expect_refused([](RunOptions& o) { o.dtype = at::kHalf; });
}

// ---- backward

TEST(Backward, ScalesTheLossInFp32) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks, half_options());
    at::Tensor x = tensor_of(at::kHalf, std::vector<uint16_t>{0x3C00, 0x4000});   // 1, 2
    x.set_requires_grad(true);
    run.optimizer->backward(x.mul(x).sum().reshape({1, 1}));   // times 1024: above what float16 would hold with 2^16
    EXPECT_EQ(values_of<float>(x.grad().to(at::kFloat)), (std::vector<float>{2048, 4096}));
  }));
}

TEST(Backward, ASecondOneNeedsRetainGraph) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    at::Tensor x = tensor_of(at::kFloat, std::vector<float>{3});
    x.set_requires_grad(true);
    const at::Tensor loss = x.mul(x).sum();
    run.optimizer->backward(loss, true);
    run.optimizer->backward(loss);
    EXPECT_EQ(x.grad().const_data_ptr<float>()[0], 12);
    EXPECT_THROW(run.optimizer->backward(loss), std::exception);
    EXPECT_EQ(x.grad().const_data_ptr<float>()[0], 12);
  }));
}

TEST(Backward, ALossIsOneNumber) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const Finding finding = error_of([&] { run.optimizer->backward(at::ones({2, 3})); });
    EXPECT_EQ(finding.code, Exit::usage);
    EXPECT_THAT(finding.found, HasSubstr("[2, 3]"));
    EXPECT_EQ(error_of([&] { run.optimizer->backward(at::Tensor()); }).code, Exit::usage);
  }));
}

TEST(Backward, TheLossScaleIsOneTensorThatFollows) {
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks, half_options());
    const at::Tensor scale = run.optimizer->loss_scale();
    EXPECT_EQ(scale.scalar_type(), at::kFloat);
    EXPECT_EQ(scale.sizes(), (std::vector<int64_t>{1}));
    EXPECT_TRUE(scale.device().is_cpu());
    const StateDict dict = run.optimizer->state_dict();
    run.set_gradients(0);
    run.model[0].grad.mutable_data_ptr<float>()[0] = kInf;
    EXPECT_FALSE(run.optimizer->step());
    EXPECT_EQ(scale.const_data_ptr<float>()[0], 512);
    run.optimizer->load_state_dict(dict);
    EXPECT_EQ(scale.const_data_ptr<float>()[0], 1024);
    EXPECT_TRUE(scale.is_same(run.optimizer->loss_scale()));
  }));
}

}  // namespace
}  // namespace fsdpctl::train
