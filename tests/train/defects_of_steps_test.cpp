// Defects of the source in its steps (A1 ... of its description), each as a function of what was observed: it holds for ours and not
// for the source, whose outcome is in a trace of the real one or comes from tests/source_emulation. A1 and A2: defects_of_overflow_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/source_emulation/lightrft.h"
#include "tests/train/made_run.h"

namespace fsdpctl::train {
namespace {

double length(const std::vector<float>& values) {
  double squares = 0;
  for (const float v : values) squares += static_cast<double>(v) * v;
  return std::sqrt(squares);
}
std::vector<float> difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> result = a;
  for (size_t i = 0; i < a.size(); ++i) result[i] -= b[i];
  return result;
}

std::vector<float> to_bfloat16(const std::vector<float>& values) {
  return values_of<float>(made_tensor(at::kBFloat16, values).to(at::kFloat));
}

// ---- what the parameters of one rank do in a step of SGD with a rate of 1: they move by the clipped gradient

constexpr uint64_t kStep = 3;

struct SgdRun {
  explicit SgdRun(Communicator& ranks, double max_norm = 1) {
    RunOptions options;
    options.optimizer = made_options(OptimizerKind::sgd);
    options.optimizer.optimizer.defaults = {1, 0, 0, 0, 0, 0};
    options.optimizer.max_norm = max_norm;
    run.emplace(ranks, options);
  }
  // By how much each moved.
  std::vector<std::vector<float>> moved() {
    std::vector<std::vector<float>> before, result;
    for (size_t i = 0; i < 3; ++i) before.push_back(run->master(i));
    run->optimizer->step();
    for (size_t i = 0; i < 3; ++i) result.push_back(difference(run->master(i), before[i]));
    return result;
  }
  std::optional<MadeRun> run;
};

// The same in the source's: a group for each parameter.
struct SourceRun {
  explicit SourceRun(bool fp32 = false) {
    for (size_t i = 0; i < 3; ++i) {
      std::vector<float> values = made_numbers(i, made_parameters()[i].count);
      parameters.push_back({source::numbers(fp32 ? values : to_bfloat16(values)), fp32, nullptr});
    }
    for (source::Parameter& p : parameters) groups.push_back({&p});
    set_gradients();
  }
  void set_gradients(double factor = 1) {
    for (size_t i = 0; i < 3; ++i) {
      std::vector<float> g = made_numbers(100 * (kStep + 1) + i, made_parameters()[i].count);
      for (float& v : g) v *= static_cast<float>(factor);
      parameters[i].gradient = source::numbers(g);
    }
  }
  template <class Step>
  std::vector<std::vector<float>> moved(const source::FSDPadaptOptimizer& optimizer, Step step) {
    std::vector<std::vector<float>> before, result;
    for (size_t i = 0; i < 3; ++i) before.push_back(*optimizer.masters()[i][0]);
    step();
    for (size_t i = 0; i < 3; ++i) result.push_back(difference(*optimizer.masters()[i][0], before[i]));
    return result;
  }
  source::Sgd sgd{1, 0, {0, 0, 0}};
  std::vector<source::Parameter> parameters;
  source::Groups groups;
};

double total(const std::vector<std::vector<float>>& parts) {
  double squares = 0;
  for (const auto& part : parts) squares += length(part) * length(part);
  return std::sqrt(squares);
}

// ---- A4, A10, A11

bool moved_by(double moved, double threshold) { return std::abs(moved - threshold) < 1e-5; }

TEST(Defects, Defect_A4_TheClipThresholdCannotBeSet) {
  SourceRun theirs;
  source::FSDPadaptOptimizer optimizer(theirs.groups, theirs.sgd);
  optimizer.clip_grad_norm(theirs.groups, 0.25);
  EXPECT_FALSE(moved_by(total(theirs.moved(optimizer, [&] { optimizer.step(); })), 0.25));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    SgdRun ours(ranks);
    ours.run->optimizer->clip_grad_norm(ours.run->model, 0.25);
    ours.run->set_gradients(kStep);
    EXPECT_TRUE(moved_by(total(ours.moved()), 0.25));
    EXPECT_GT(ours.run->optimizer->last_grad_norm(), 1);   // and the norm can be asked for
  }));
}

bool moves_at_all(double moved) { return moved > 1; }   // by the whole gradient, whose norm is more than 1

TEST(Defects, Defect_A10_AThresholdOfZeroZeroesTheGradients) {
  SourceRun theirs;
  source::Strategy strategy;
  source::FSDPadaptOptimizer optimizer = strategy.create_optimizer(theirs.groups, theirs.sgd);
  EXPECT_FALSE(moves_at_all(total(theirs.moved(optimizer, [&] { strategy.optimizer_step(optimizer, 0); }))));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    SgdRun ours(ranks, 0);
    ours.run->set_gradients(kStep);
    EXPECT_TRUE(moves_at_all(total(ours.moved())));
  }));
}

// One clip of all gradients keeps their proportions.
bool keeps_proportions(const std::vector<std::vector<float>>& moved) {
  std::vector<double> ratios;
  for (size_t i = 0; i < 3; ++i) ratios.push_back(length(moved[i]) / length(made_numbers(100 * (kStep + 1) + i, made_parameters()[i].count)));
  return std::abs(ratios[0] / ratios[1] - 1) < 1e-4 && std::abs(ratios[0] / ratios[2] - 1) < 1e-4;
}

TEST(Defects, Defect_A11_GradientsAreClippedTwicePerGroupAndGlobally) {
  SourceRun theirs;
  source::Strategy strategy;
  source::FSDPadaptOptimizer optimizer = strategy.create_optimizer(theirs.groups, theirs.sgd);
  EXPECT_FALSE(keeps_proportions(theirs.moved(optimizer, [&] { strategy.optimizer_step(optimizer, 0.5); })));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    SgdRun ours(ranks, 0.5);
    ours.run->set_gradients(kStep);
    const auto moved = ours.moved();
    EXPECT_TRUE(keeps_proportions(moved));
    EXPECT_TRUE(moved_by(total(moved), 0.5));
  }));
}

// ---- A5

struct MissingGradientOutcome {
  bool threw = false, others_moved = false, left_alone = false;
};
bool goes_on_without_it(const MissingGradientOutcome& o) { return !o.threw && o.others_moved && o.left_alone; }

TEST(Defects, Defect_A5_AParameterWithoutGradientEndsTheStep) {
  SourceRun theirs;
  source::FSDPadaptOptimizer optimizer(theirs.groups, theirs.sgd);
  theirs.parameters[1].gradient = nullptr;
  MissingGradientOutcome outcome;
  const auto moved = theirs.moved(optimizer, [&] {
    try {
      optimizer.step();
    } catch (const source::PythonError&) {
      outcome.threw = true;
    }
  });
  outcome.others_moved = length(moved[0]) > 0;
  outcome.left_alone = length(moved[1]) == 0;
  EXPECT_FALSE(goes_on_without_it(outcome));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    SgdRun ours(ranks);
    ours.run->set_gradients(kStep);
    ours.run->model[1].grad = at::Tensor();
    const auto mine = ours.moved();
    EXPECT_TRUE(goes_on_without_it({false, length(mine[0]) > 0, length(mine[1]) == 0}));
  }));
}

// ---- A6

bool is_the_norm(double norm, double expected) { return std::abs(norm - expected) <= 1e-12 * expected; }

TEST(Defects, Defect_A6_ReplicasAreCountedInTheNorm) {
  SourceRun first, second;   // two ranks that hold the same
  const double expected = [&] {
    source::FSDPadaptOptimizer alone(first.groups, first.sgd);
    alone.step();
    first.set_gradients();
    return alone.last_norm();
  }();
  source::FSDPadaptOptimizer a(first.groups, first.sgd), b(second.groups, second.sgd);
  std::vector<source::FSDPadaptOptimizer*> both = {&a, &b};
  source::FSDPadaptOptimizer::step(both);
  EXPECT_FALSE(is_the_norm(a.last_norm(), expected));
  EXPECT_TRUE(is_the_norm(a.last_norm() / std::sqrt(2), expected));
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    RunOptions options;
    options.replicas = 2;
    MadeRun ours(ranks, options);
    ours.step(kStep);
    EXPECT_TRUE(is_the_norm(ours.optimizer->last_grad_norm(), expected));
  }));
}

// ---- A9

TEST(Defects, Defect_A9_ASecondOptimizerTakesOverTheFirstOnesClipping) {
  SourceRun actor, critic;
  critic.set_gradients(10);
  source::Strategy strategy;
  source::FSDPadaptOptimizer of_actor = strategy.create_optimizer(actor.groups, actor.sgd);
  source::FSDPadaptOptimizer of_critic = strategy.create_optimizer(critic.groups, critic.sgd);
  const double expected = length(*actor.parameters[0].gradient);
  strategy.optimizer_step(of_actor, 1);
  EXPECT_FALSE(is_the_norm(strategy.norms()[0], expected));
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    SgdRun mine(ranks), other(ranks);
    mine.run->set_gradients(kStep);
    other.run->set_gradients(kStep);
    other.run->model[0].grad.mul_(10);
    mine.run->model[1].grad = mine.run->model[2].grad = at::Tensor();
    mine.run->optimizer->step();
    EXPECT_TRUE(is_the_norm(mine.run->optimizer->last_grad_norm(), expected));
  }));
}

// ---- A14

// Counts what its rank asks of the others.
class CountingRanks final : public Communicator {
 public:
  explicit CountingRanks(Communicator& ranks) : ranks_(ranks) {}
  int calls = 0;
  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  std::unique_ptr<Pending> start_all_gather(Elements in, MutableElements out, std::string_view unit) override {
    return ++calls, ranks_.start_all_gather(in, out, unit);
  }
  std::unique_ptr<Pending> start_reduce_scatter(Elements in, MutableElements out, std::string_view unit) override {
    return ++calls, ranks_.start_reduce_scatter(in, out, unit);
  }
  void all_reduce(MutableElements data, Reduction reduction, std::string_view unit) override {
    ++calls, ranks_.all_reduce(data, reduction, unit);
  }
  void broadcast(MutableElements data, int root, std::string_view unit) override { ++calls, ranks_.broadcast(data, root, unit); }
  std::vector<std::string> exchange(std::string_view bytes, std::string_view unit) override {
    return ++calls, ranks_.exchange(bytes, unit);
  }
  void barrier(std::string_view unit) override { ++calls, ranks_.barrier(unit); }
  void abort(Finding why) override { ranks_.abort(std::move(why)); }
  void close() override { ranks_.close(); }

 private:
  Communicator& ranks_;
};

struct NoiseOutcome {
  size_t collectives = 0;
  std::string printed;
};
bool is_quiet(const NoiseOutcome& o) { return o.collectives == 1 && o.printed.empty(); }

TEST(Defects, Defect_A14_EachGroupHasACollectiveAndALineOfDebugOutput) {
  SourceRun theirs;
  source::FSDPadaptOptimizer optimizer(theirs.groups, theirs.sgd);
  source::FSDPadaptOptimizer* alone = &optimizer;
  source::Noise noise;
  source::FSDPadaptOptimizer::step(std::span(&alone, 1), &noise);
  EXPECT_FALSE(is_quiet({noise.collectives, noise.printed}));

  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::vector<size_t> calls(2);
  const RankResults results = run_ranks(2, [&](Communicator& ranks) {
    CountingRanks counting(ranks);
    RunOptions options;
    options.optimizer.optimizer.rules = {{"layer.*", 0.5, {}, {}, {}, {}, {}}};   // two groups
    MadeRun ours(counting, options);
    ours.set_gradients(kStep);
    counting.calls = 0;
    ours.optimizer->step();
    calls[static_cast<size_t>(ranks.rank())] = static_cast<size_t>(counting.calls);
  });
  const std::string printed = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  expect_all_well(results);
  for (const size_t made : calls) EXPECT_TRUE(is_quiet({made, printed})) << made << printed;
}

// ---- A15

TEST(Defects, Defect_A15_UnscalingChangesTheGradientsOfAnFp32Model) {
  const auto is_untouched = [](const std::vector<float>& before, const std::vector<float>& after) { return before == after; };
  SourceRun theirs(true);
  source::FSDPadaptOptimizer optimizer(theirs.groups, theirs.sgd);
  const source::Numbers gradient = theirs.parameters[0].gradient;
  const std::vector<float> as_given = *gradient;
  optimizer.step();
  EXPECT_FALSE(is_untouched(as_given, *gradient));
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    RunOptions options;
    options.dtype = at::kFloat;
    MadeRun ours(ranks, options);
    ours.set_gradients(kStep);
    const at::Tensor mine = ours.model[0].grad;
    const std::vector<float> before = values_of<float>(mine);
    ours.optimizer->step();
    EXPECT_TRUE(is_untouched(before, values_of<float>(mine)));
  }));
}

// ---- A18

struct AncestorOutcome {
  bool threw = false;
  std::vector<int> collectives;   // of each rank
};
bool ends_well_on_all_ranks(const AncestorOutcome& o) {
  return !o.threw && std::all_of(o.collectives.begin(), o.collectives.end(), [&](int n) { return n == o.collectives[0]; });
}
AncestorOutcome internevo(const std::vector<size_t>& numel, double norm, double clip) {
  try {
    return {false, source::internevo_step(numel, norm, clip)};
  } catch (const source::PythonError&) {
    return {true, {}};
  }
}
// Ours on as many ranks; the last of five holds nothing of the second parameter.
AncestorOutcome ours_on(int world, bool nan, double clip) {
  AncestorOutcome outcome;
  outcome.collectives.resize(static_cast<size_t>(world));
  const RankResults results = run_ranks(world, [&](Communicator& ranks) {
    CountingRanks counting(ranks);
    RunOptions options;
    options.optimizer.max_norm = clip;
    options.optimizer.optimizer.rules = {{"*.bias", 0.5, {}, {}, {}, {}, {}}};   // a group that is empty there
    MadeRun ours(counting, options);
    if (world == 5 && ranks.rank() == 4) {
      EXPECT_EQ(ours.model[1].description.count(), 0u);
    }
    ours.set_gradients(kStep);
    if (nan && ranks.rank() == 0) ours.model[0].grad.mutable_data_ptr<float>()[0] = NAN;
    counting.calls = 0;
    EXPECT_EQ(ours.optimizer->step(), !nan);
    outcome.collectives[static_cast<size_t>(ranks.rank())] = counting.calls;
  });
  for (const auto& finding : results.findings) outcome.threw = outcome.threw || finding.has_value();
  return outcome;
}

TEST(Defects, Defect_A18_TheAncestorCrashesOnNanAndWithoutClippingAndHangsOnEmptyGroups) {
  EXPECT_FALSE(ends_well_on_all_ranks(internevo({3, 3}, NAN, 1)));
  EXPECT_FALSE(ends_well_on_all_ranks(internevo({3, 3}, 2, 0)));
  EXPECT_FALSE(ends_well_on_all_ranks(internevo({3, 0}, 2, 1)));
  EXPECT_TRUE(ends_well_on_all_ranks(internevo({3, 3}, 2, 1)));
  EXPECT_TRUE(ends_well_on_all_ranks(ours_on(2, true, 1)));
  EXPECT_TRUE(ends_well_on_all_ranks(ours_on(2, false, 0)));
  EXPECT_TRUE(ends_well_on_all_ranks(ours_on(5, false, 1)));
}

}  // namespace
}  // namespace fsdpctl::train
