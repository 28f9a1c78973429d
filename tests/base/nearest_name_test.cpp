#include "lib/base/nearest_name.h"

#include <gtest/gtest.h>

namespace fsdpctl {
namespace {

const std::vector<std::string> kCommands = {"inspect", "verify", "diff", "reshard", "convert", "generate"};

TEST(NearestName, FindsTheNameThatWasMeant) {
  EXPECT_EQ(nearest_name("inspct", kCommands), "inspect");
  EXPECT_EQ(nearest_name("verfiy", kCommands), "verify");  // two neighbours swapped
  EXPECT_EQ(nearest_name("re-shard", kCommands), "reshard");
  EXPECT_EQ(nearest_name("convrt", kCommands), "convert");
}

TEST(NearestName, IsSilentWhereNothingIsNear) {
  EXPECT_EQ(nearest_name("merge", kCommands), "");
  EXPECT_EQ(nearest_name("", kCommands), "");
  EXPECT_EQ(nearest_name(std::string(100'000, 'x'), kCommands), "");
}

TEST(NearestName, DashesMakeNoFlagNearer) {
  EXPECT_EQ(nearest_name("--tensor", {"--tensors", "--json"}), "--tensors");
  EXPECT_EQ(nearest_name("--no-json", {"--tensors", "--json"}), "--json");
  EXPECT_EQ(nearest_name("--version", {"--tensors", "--json"}), "");
}

}  // namespace
}  // namespace fsdpctl
