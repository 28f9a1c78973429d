// Moving optimizer state off the device and back, with copies that are late and memory that is poisoned until they came.
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/error_of.h"
#include "tests/train/made_run.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kElements = 21 + 7 + 10;
constexpr uint64_t kMoments = kElements * 2 * sizeof(float), kMasters = kElements * sizeof(float);

RunOptions late(OptimizerKind kind = OptimizerKind::adamw) {
  RunOptions options;
  options.optimizer = made_options(kind);
  options.device.copy_delay = std::chrono::milliseconds(5);
  options.device.poison = true;
  return options;
}

const char kUnwaited[] = "optimizer state is used before the wait() of its move";
const char kAway[] = "optimizer state is not on the device";

TEST(Offload, MovesMomentsThereAndBackWithoutATrace) {
  expect_all_well(run_ranks(2, [](Communicator& ranks) {
    MadeRun moved(ranks, late()), stayed(ranks, late());
    for (uint64_t step = 0; step < 3; ++step) {
      for (MadeRun* run : {&moved, &stayed}) run->step(step);
      StateMove out = offload_fsdp_optimizer(*moved.optimizer);
      out.wait();
      EXPECT_EQ(moved.everything(), stayed.everything());
      StateMove back = load_fsdp_optimizer(*moved.optimizer);
      back.wait();
      EXPECT_EQ(back.bytes(), out.bytes());
      EXPECT_EQ(moved.everything(), stayed.everything());
    }
  }));
}

TEST(Offload, BytesAndPoolsAreExact) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun run(ranks, late());
    Device& device = run.device();
    StateMove nothing = offload_fsdp_optimizer(*run.optimizer);   // no moments yet, and none are made
    EXPECT_EQ(nothing.bytes(), 0u);
    EXPECT_EQ(device.use(Place::device).bytes, kMasters);
    run.step(0);
    EXPECT_EQ(device.use(Place::device).bytes, kMasters + kMoments);
    EXPECT_EQ(device.use(Place::pinned).bytes, 0u);

    StateMove out = offload_fsdp_optimizer(*run.optimizer);
    EXPECT_TRUE(out.simulated());
    EXPECT_EQ(out.bytes(), kMoments);
    EXPECT_EQ(device.use(Place::device).bytes, kMasters + kMoments);   // until wait()
    out.wait();
    out.wait();   // again: nothing
    EXPECT_EQ(device.use(Place::device).bytes, kMasters);
    EXPECT_EQ(device.use(Place::pinned).bytes, kMoments);
    EXPECT_EQ(offload_fsdp_optimizer(*run.optimizer).bytes(), 0u);

    StateMove masters = offload_fsdp_optimizer(*run.optimizer, {true});
    EXPECT_EQ(masters.bytes(), kMasters);
    masters.wait();
    EXPECT_EQ(device.use(Place::device).bytes, 0u);
    EXPECT_EQ(offload_fsdp_optimizer(*run.optimizer, {true}).bytes(), 0u);

    StateMove back = load_fsdp_optimizer(*run.optimizer, "cpu");
    EXPECT_EQ(back.bytes(), kMasters + kMoments);
    back.wait();
    EXPECT_EQ(device.use(Place::pinned).bytes, 0u);
    EXPECT_EQ(device.use(Place::device).bytes, kMasters + kMoments);
    EXPECT_EQ(device.use(Place::device).peak, kMasters + kMoments);
    EXPECT_EQ(device.use(Place::pinned).peak, kMasters + kMoments);
    EXPECT_EQ(load_fsdp_optimizer(*run.optimizer).bytes(), 0u);
  }));
}

TEST(Offload, NothingIsUsedBeforeWait) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun run(ranks, late());
    run.step(0);
    const StateDict dict = run.optimizer->state_dict();
    const auto expect_refused = [&] {
      EXPECT_EQ(error_of([&] { run.optimizer->state_dict(); }).what, kUnwaited);
      EXPECT_EQ(error_of([&] { run.optimizer->state().moment(0, 0); }).what, kUnwaited);
      EXPECT_EQ(error_of([&] { run.optimizer->state().master(0); }).what, kUnwaited);
      EXPECT_EQ(error_of([&] { run.optimizer->load_state_dict(dict); }).what, kUnwaited);
      EXPECT_EQ(error_of([&] { run.optimizer->refresh_masters_from_model(); }).what, kUnwaited);
      EXPECT_EQ(error_of([&] { (void)offload_fsdp_optimizer(*run.optimizer); }).what, kUnwaited);
      EXPECT_EQ(error_of([&] { (void)load_fsdp_optimizer(*run.optimizer); }).what, kUnwaited);
      run.set_gradients(1);
      EXPECT_EQ(error_of([&] { run.optimizer->step(); }).what, kUnwaited);
    };
    StateMove out = offload_fsdp_optimizer(*run.optimizer);
    expect_refused();
    std::this_thread::sleep_for(std::chrono::milliseconds(30));   // the copy is done, but nobody has waited for it
    expect_refused();
    out.wait();
    StateMove back = load_fsdp_optimizer(*run.optimizer);
    expect_refused();
    back.wait();
    EXPECT_TRUE(run.step(1));
  }));
}

TEST(Offload, AStepNeedsTheStateOnTheDeviceOnEveryRank) {
  const RankResults results = run_ranks(2, [](Communicator& ranks) {
    MadeRun run(ranks, late());
    run.step(0);
    if (ranks.rank() == 1) offload_fsdp_optimizer(*run.optimizer).wait();
    const auto before = run.everything();
    run.set_gradients(1);
    const Finding finding = error_of([&] { run.optimizer->step(); });
    EXPECT_EQ(finding.what, kAway);
    EXPECT_EQ(finding.where.rank, 1);
    EXPECT_EQ(run.everything(), before);
    if (ranks.rank() == 1) load_fsdp_optimizer(*run.optimizer).wait();
    EXPECT_TRUE(run.step(1));
  });
  expect_all_well(results);
}

TEST(Offload, StateDictWorksWhileStateIsAway) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    for (const bool masters : {false, true}) {
      MadeRun away(ranks, late()), here(ranks, late());
      for (MadeRun* run : {&away, &here}) run->step(0);
      offload_fsdp_optimizer(*away.optimizer, {masters}).wait();
      const StateDict dict = away.optimizer->state_dict();
      MadeRun loaded(ranks, late());
      loaded.optimizer->load_state_dict(dict);
      EXPECT_EQ(loaded.everything(), here.everything());
      EXPECT_EQ(error_of([&] { away.optimizer->load_state_dict(dict); }).what, kAway);
    }
  }));
}

TEST(Offload, MastersThatAreTheModelsOwnStay) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    RunOptions options = late();
    options.dtype = at::kFloat;
    MadeRun run(ranks, options);
    run.step(0);
    StateMove out = offload_fsdp_optimizer(*run.optimizer, {true});
    EXPECT_EQ(out.bytes(), kMoments);
    out.wait();
  }));
}

TEST(Offload, SgdHasOneMomentOrNone) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    for (const double momentum : {0.9, 0.0}) {
      RunOptions options = late(OptimizerKind::sgd);
      options.optimizer.optimizer.defaults.momentum = momentum;
      MadeRun run(ranks, options);
      run.step(0);
      StateMove out = offload_fsdp_optimizer(*run.optimizer);
      EXPECT_EQ(out.bytes(), momentum > 0 ? kMoments / 2 : 0);
      out.wait();
    }
  }));
}

TEST(Offload, OtherDevicesAreRefused) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun run(ranks, late());
    run.step(0);
    offload_fsdp_optimizer(*run.optimizer).wait();
    EXPECT_EQ(error_of([&] { (void)load_fsdp_optimizer(*run.optimizer, "cuda:9999"); }).code, Exit::unsupported);
    EXPECT_EQ(error_of([&] { (void)load_fsdp_optimizer(*run.optimizer, "gpu"); }).code, Exit::usage);
    load_fsdp_optimizer(*run.optimizer).wait();
    EXPECT_TRUE(run.step(1));
  }));
}

TEST(Offload, AMoveMayBeForgotten) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    std::optional<StateMove> left;
    {
      MadeRun run(ranks, late());
      run.step(0);
      left.emplace(offload_fsdp_optimizer(*run.optimizer));
    }   // the optimizer goes first, while the copy is under way
    left->wait();
    EXPECT_EQ(left->bytes(), kMoments);
  }));
}

}  // namespace
}  // namespace fsdpctl::train
