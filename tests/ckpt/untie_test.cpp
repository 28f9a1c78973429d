#include "lib/ckpt/untie.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

std::vector<std::string> texts(const std::vector<Change>& changes) {
  std::vector<std::string> lines;
  for (const Change& c : changes) lines.push_back(c.kind + " " + c.key + ": " + c.detail);
  return lines;
}

TEST(Untie, GivesEveryNameATensorOfItsOwn) {
  MadeCheckpoint made;
  const Value w = made.tensor("a", {2, 3}), shard = made.shard("b", {4}, 2);
  const Value block = dict({{"w", w}, {"b", shard}});
  // `block` stands at two places; each must get names of its own.
  made.checkpoint.tree = dict({{"first", block}, {"second", block}, {"list", list({w})}, {"step", Value::integer(1)}});
  FindingSink sink;
  made.checkpoint.finish(sink);
  ASSERT_EQ(made.checkpoint.aliases.size(), 3u);
  std::vector<Change> changes = {{"cast", "first.w", "float32 -> float16"}};
  const Checkpoint out = untied(made.checkpoint, changes);
  EXPECT_TRUE(out.aliases.empty());
  ASSERT_EQ(out.tensors.size(), 5u);
  for (const char* name : {"second.b", "second.w", "list.0"}) {
    const TensorIndex original = *made.checkpoint.find(name), copy = *out.find(name);
    EXPECT_TRUE(equal(out.tensors[copy].shape, made.checkpoint.tensors[original].shape));
    ASSERT_EQ(out.pieces_of(copy).size(), made.checkpoint.pieces_of(original).size()) << name;
    for (size_t i = 0; i < out.pieces_of(copy).size(); ++i) {
      EXPECT_EQ(out.pieces_of(copy)[i].offset, made.checkpoint.pieces_of(original)[i].offset);
      EXPECT_EQ(out.pieces_of(copy)[i].rank, made.checkpoint.pieces_of(original)[i].rank);
    }
  }
  EXPECT_EQ(out.tree.find("step")->as_integer(), 1);
  EXPECT_THAT(texts(changes), testing::ElementsAre("cast first.w: float32 -> float16", "copied second.w: tied to first.w, and written once more",
                                                   "cast second.w: float32 -> float16", "copied second.b: tied to first.b, and written once more",
                                                   "copied list.0: tied to first.w, and written once more", "cast list.0: float32 -> float16"));
}

TEST(Untie, LeavesOthersAlone) {
  MadeCheckpoint made;
  made.checkpoint.tree = dict({{"a", made.tensor("a", {2, 3})}, {"b", made.tensor("b", {4})}});
  FindingSink sink;
  made.checkpoint.finish(sink);
  std::vector<Change> changes;
  EXPECT_TRUE(equal(untied(made.checkpoint, changes).tree, made.checkpoint.tree));
  EXPECT_TRUE(changes.empty());
}

}  // namespace
}  // namespace fsdpctl
