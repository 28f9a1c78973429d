// Ranks that are processes: they compute what threads compute, and whatever happens to one, all end and name it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "lib/comm/local_launch.h"
#include "lib/comm/socket.h"
#include "tests/comm/gloo/script.h"
#include "tests/comm/ranks.h"

namespace fsdpctl {
namespace {

using testing::HasSubstr;

class Gloo : public testing::Test {
 protected:
  Gloo() {
    char name[] = "/tmp/fsdpctl-gloo-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~Gloo() override {
    if (std::system(("rm -r '" + directory_ + "'").c_str()) != 0) ADD_FAILURE();
  }

  LocalOutcome launch(int nproc, const std::string& mode, const std::string& fault = "") {
    LocalLaunch launch;
    launch.nproc = nproc;
    launch.argv = {FSDPCTL_GLOO_RANK, directory_, mode};
    launch.environment = {"OMP_NUM_THREADS=1"};
    launch.grace = Milliseconds(1500);
    if (!fault.empty()) launch.environment.push_back("FSDPCTL_COMM_FAULT=" + fault);
    const auto begin = std::chrono::steady_clock::now();
    const LocalOutcome outcome = launch_local(launch);
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return outcome;
  }

  std::string read(int rank, const std::string& kind) const {
    std::ifstream file(directory_ + "/" + std::to_string(rank) + "." + kind, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Every one of these ranks ended with an Error that names rank `failed`.
  void expect_named(int failed, const std::vector<int>& ranks, const std::string& words) const {
    for (const int rank : ranks) {
      const std::string text = read(rank, "error");
      EXPECT_TRUE(text.starts_with(std::to_string(failed) + "\n")) << "rank " << rank << ": " << text;
      EXPECT_THAT(text, HasSubstr(words));
    }
  }

  std::string directory_;
  double seconds_ = 0;
};

TEST_F(Gloo, ComputesWhatThreadsCompute) {
  for (const int size : {1, 2, 4}) {
    ASSERT_EQ(launch(size, "collectives").code, Exit::ok) << read(0, "error");
    std::vector<std::string> expected(static_cast<size_t>(size));
    run_ranks(size, [&](Communicator& ranks) { expected[static_cast<size_t>(ranks.rank())] = run_script(ranks); });
    for (int rank = 0; rank < size; ++rank) {
      const std::string result = read(rank, "result");
      ASSERT_GT(result.size(), 100'000u);
      EXPECT_TRUE(result == expected[static_cast<size_t>(rank)]) << "rank " << rank << " of " << size;
    }
  }
}

TEST_F(Gloo, ARankThatIsKilledIsNamedAtOnce) {
  const LocalOutcome outcome = launch(3, "work", "1:57:kill");
  EXPECT_EQ(outcome.code, Exit::failed);
  ASSERT_TRUE(outcome.finding);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  EXPECT_THAT(outcome.finding->found, HasSubstr("signal 9"));
  expect_named(1, {0, 2}, "rank 1");   // the launcher or the store may be first to see it
  EXPECT_LT(seconds_, 15);      // the time-out is 20 s
}

TEST_F(Gloo, ARankThatHangsIsNamedInTime) {
  const LocalOutcome outcome = launch(3, "hang", "2:64:stop");
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(outcome.finding->where.rank, 2);
  expect_named(2, {0, 1}, "a rank does not answer");
}

TEST_F(Gloo, SizesThatDisagreeAreAnErrorOnEveryRank) {
  const LocalOutcome outcome = launch(3, "other_size");
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  expect_named(1, {0, 1, 2}, "ranks 0, 2: all_gather of 7 float32 in layers.3 (operation 0), found rank 1: all_gather of 70000");
  EXPECT_LT(seconds_, 15);
}

TEST_F(Gloo, ARankWithAnErrorOfItsOwnTellsAll) {
  const LocalOutcome outcome = launch(2, "gives_up");
  EXPECT_EQ(outcome.code, Exit::damaged);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  expect_named(1, {0}, "token file is cut short (data.bin, rank 1)");
  EXPECT_THAT(read(1, "error"), HasSubstr("token file is cut short"));
}

TEST_F(Gloo, ARankThatLeavesEarlyIsNamed) {
  const LocalOutcome outcome = launch(2, "leaves");
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  expect_named(1, {0}, "a rank is gone");
  EXPECT_LT(seconds_, 15);
}

TEST_F(Gloo, ARankThatNeverComesIsNamed) {
  const LocalOutcome outcome = launch(2, "absent");
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  expect_named(1, {0}, "a rank does not come");
}

TEST_F(Gloo, GroupsOfRanksNameRanksByTheirNumberAmongAll) {
  const LocalOutcome outcome = launch(4, "groups");
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(read(0, "result"), "01 02 ");
  EXPECT_EQ(read(3, "result"), "23 13 ");
  expect_named(3, {0, 1, 2, 3}, "rank 2: broadcast of 1 float32 from rank 0");
}

// Without a launcher that serves the store: rank 0 does, at a port that the environment gives.
TEST_F(Gloo, APortInUseEndsAllRanks) {
  const Socket taken = Socket::listen("127.0.0.1", 0);
  LocalLaunch launch;
  launch.nproc = 2;
  launch.grace = Milliseconds(500);
  launch.argv = {"/bin/sh", "-c", "unset FSDPCTL_STORE_IS_SERVED; MASTER_PORT=" + std::to_string(taken.port()) +
                 " exec '" + std::string(FSDPCTL_GLOO_RANK) + "' '" + directory_ + "' collectives"};
  const LocalOutcome outcome = launch_local(launch);
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(outcome.finding->where.rank, 0);
  EXPECT_THAT(read(0, "error"), HasSubstr("port is in use"));
}

TEST_F(Gloo, RankZeroServesTheStoreWhereNobodyElseDoes) {
  uint16_t port = Socket::listen("127.0.0.1", 0).port();
  LocalLaunch launch;
  launch.nproc = 2;
  launch.argv = {"/bin/sh", "-c", "unset FSDPCTL_STORE_IS_SERVED; MASTER_PORT=" + std::to_string(port) +
                 " exec '" + std::string(FSDPCTL_GLOO_RANK) + "' '" + directory_ + "' collectives"};
  const LocalOutcome outcome = launch_local(launch);
  EXPECT_EQ(outcome.code, Exit::ok) << read(0, "error") << read(1, "error");
}

}  // namespace
}  // namespace fsdpctl
