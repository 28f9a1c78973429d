// Defects of the source in its loss scale (A1, A2), and the proof that tests/source_emulation is the source; see
// defects_of_steps_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/source_emulation/lightrft.h"
#include "tests/train/made_run.h"
#include "tests/train/trace.h"

namespace fsdpctl::train {
namespace {

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

// ---- the emulation is the source

TEST(SourceEmulation, TakesTheRecordedSteps) {
  for (const int world : {1, 2, 4}) {
    const Trace trace(world);
    const std::string run = "sgd-bf16-asis";
    const std::vector<std::vector<std::string>> names = {{"g0.t0", "g0.t1"}, {"g1.t0"}};
    const auto array = [&](const std::string& what, const std::string& name, int rank) {
      const auto bits = trace.array<uint16_t>(run + "." + what + "." + name + ".r" + std::to_string(rank));
      return source::numbers(values_of<float>(tensor_of(at::kBFloat16, bits).to(at::kFloat)));
    };
    std::vector<std::vector<std::unique_ptr<source::Parameter>>> owned(static_cast<size_t>(world));
    std::vector<std::unique_ptr<source::FSDPadaptOptimizer>> optimizers;
    std::vector<source::FSDPadaptOptimizer*> ranks;
    for (int rank = 0; rank < world; ++rank) {
      source::Groups groups;
      for (const auto& group : names) {
        groups.emplace_back();
        for (const std::string& name : group) {
          auto& mine = owned[static_cast<size_t>(rank)];
          mine.push_back(std::make_unique<source::Parameter>(source::Parameter{array("init", name, rank), false, nullptr}));
          groups.back().push_back(mine.back().get());
        }
      }
      optimizers.push_back(std::make_unique<source::FSDPadaptOptimizer>(groups, source::Sgd{0.1, 0.9, {0.1, 0}}));
      ranks.push_back(optimizers.back().get());
    }
    for (const auto& record : trace.runs()[run]["trace"]) {
      const std::string step = "s" + std::to_string(record["step"].get<int>());
      const auto parameter = [&](int rank, size_t i) -> source::Parameter& { return *owned[static_cast<size_t>(rank)][i]; };
      const std::vector<std::string> flat = {"g0.t0", "g0.t1", "g1.t0"};
      for (int rank = 0; rank < world; ++rank) {
        for (size_t i = 0; i < 3; ++i) parameter(rank, i).gradient = array(step + ".grad", flat[i], rank);
      }
      EXPECT_EQ(source::FSDPadaptOptimizer::step(ranks), record["returned"].get<bool>());
      EXPECT_NEAR(ranks[0]->last_norm(), number(record["global_scaled_norm"]), 1e-12 * ranks[0]->last_norm());
      for (int rank = 0; rank < world; ++rank) {
        for (size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(*parameter(rank, i).values, *array(step + ".param", flat[i], rank)) << step << flat[i];
          EXPECT_EQ(*ranks[static_cast<size_t>(rank)]->masters()[i / 2][i % 2],
                    trace.array<float>(run + "." + step + ".master." + flat[i] + ".r" + std::to_string(rank)));
        }
      }
    }
  }
}

// ---- A1

struct OverflowOutcome {
  bool returned = false, finite = false;
};
bool overflow_was_skipped(const OverflowOutcome& o) { return !o.returned && o.finite; }

TEST(Defects, Defect_A1_OverflowOnOneRankDestroysAllWeights) {
  for (const int world : {1, 2, 4}) {
    for (const auto& [run, step] : {std::pair{"adamw-bf16-inf-asis", 2}, std::pair{"adamw-bf16-nan-asis", 1}}) {
      const Trace trace(world);
      const std::string prefix = std::string(run) + ".s" + std::to_string(step) + ".";
      for (int rank = 0; rank < world; ++rank) {
        const auto recorded = trace.array<float>(prefix + "master.g0.t0.r" + std::to_string(rank));
        EXPECT_FALSE(overflow_was_skipped(
            {trace.runs()[run]["trace"][static_cast<size_t>(step)]["returned"].get<bool>(), all_finite(recorded)}));
      }
      const std::string run_name = run;
      const auto at_step = static_cast<uint64_t>(step);
      expect_all_well(run_ranks(world, [&](Communicator& ranks) {
        MadeRun ours(ranks);
        for (uint64_t s = 0; s < at_step; ++s) ours.step(s);
        ours.set_gradients(at_step);
        if (ranks.rank() == world - 1) {
          ours.model[0].grad.mutable_data_ptr<float>()[0] = run_name.find("inf") != std::string::npos ? HUGE_VALF : NAN;
        }
        const bool returned = ours.optimizer->step();
        EXPECT_TRUE(overflow_was_skipped({returned, all_finite(ours.master(0))}));
      }));
    }
  }
}

// ---- A2

struct ScaleOutcome {
  std::vector<double> scales;   // before and after overflows
};
bool scale_is_dynamic(const ScaleOutcome& o) { return o.scales.front() > 1 && o.scales.back() < o.scales.front(); }

TEST(Defects, Defect_A2_TheDynamicLossScaleIsConstant) {
  const Trace trace(1);
  ScaleOutcome recorded;
  for (const auto& state : trace.scaler_sequences()["lightrft"]["states"]) recorded.scales.push_back(state["_scale"]);
  EXPECT_FALSE(scale_is_dynamic(recorded));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    RunOptions options;
    options.dtype = at::kHalf;
    MadeRun ours(ranks, options);
    ScaleOutcome outcome;
    for (int i = 0; i < 3; ++i) {
      outcome.scales.push_back(ours.optimizer->loss_scale().const_data_ptr<float>()[0]);
      ours.set_gradients(0);
      ours.model[0].grad.mutable_data_ptr<float>()[0] = HUGE_VALF;
      ours.optimizer->step();
    }
    EXPECT_TRUE(scale_is_dynamic(outcome));
    EXPECT_EQ(outcome.scales, (std::vector<double>{65536, 65536, 32768}));
  }));
}

}  // namespace
}  // namespace fsdpctl::train
