#include "lib/ckpt/training_state.h"

#include <gtest/gtest.h>

#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

std::vector<StateEntry> state_of(MadeCheckpoint& made, Value tree) {
  made.checkpoint.tree = std::move(tree);
  FindingSink sink;
  made.checkpoint.finish(sink);
  return find_training_state(made.checkpoint, find_parts(made.checkpoint));
}

TEST(TrainingState, CheckpointsThatAreNoMapping) {
  MadeCheckpoint bare, several, nothing;
  EXPECT_TRUE(state_of(bare, bare.tensor("", {2, 3})).empty());
  EXPECT_EQ(state_of(several, list({several.tensor("", {2}), Value::integer(3)})).size(), 1u);
  EXPECT_EQ(state_of(nothing, Value()).size(), 1u);
}

TEST(TrainingState, TellsSchedulersScalersAndCounters) {
  MadeCheckpoint made;
  const auto found = state_of(made, dict({{"model", dict({{"w", made.tensor("", {2})}})},
                                          {"sched", dict({{"last_epoch", Value::integer(3)}, {"_step_count", Value::integer(4)}})},
                                          {"scaler", dict({{"scale", Value::real(2)}, {"_growth_tracker", Value::integer(1)}})},
                                          {"epoch", Value::integer(7)},
                                          {"note", Value::string("x")}}));
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].kind, StateKind::scheduler);
  EXPECT_EQ(found[1].kind, StateKind::scaler);
  EXPECT_EQ(found[2].kind, StateKind::counter);
  EXPECT_EQ(found[3].kind, StateKind::other);
}

}  // namespace
}  // namespace fsdpctl
