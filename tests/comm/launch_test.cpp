#include "lib/comm/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using Set = std::map<std::string, std::string>;

Launch launch_in(const Set& set) {
  return read_launch([&](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

const Set kTorchrun = {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}};

Set with(Set set, const std::string& name, const std::string& value) {
  set[name] = value;
  return set;
}
Set without(Set set, const std::string& name) {
  set.erase(name);
  return set;
}

TEST(Launch, NothingSetIsOneRank) {
  const Launch launch = launch_in({});
  EXPECT_EQ(launch.launcher, Launcher::none);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
}

TEST(Launch, Torchrun) {
  Launch launch = launch_in(kTorchrun);
  EXPECT_EQ(launch.launcher, Launcher::torchrun);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 4);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_FALSE(launch.agent_has_port);
  EXPECT_FALSE(launch.store_is_served);
  launch = launch_in(with(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), "TORCHELASTIC_RUN_ID", "job"));
  EXPECT_TRUE(launch.agent_has_port);
  EXPECT_EQ(launch.run_id, "job/");
}

TEST(Launch, LocalRankMayBeLeftOutWhereItFollows) {
  EXPECT_EQ(launch_in(without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE")).local_rank, 5);
  const Finding finding = error_of([] { launch_in(without(kTorchrun, "LOCAL_RANK")); });   // rank 5 of 4 per machine
  EXPECT_EQ(finding.where.key, "LOCAL_RANK");
}

TEST(Launch, OpenMpi) {
  const Launch launch = launch_in({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                   {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(launch.launcher, Launcher::open_mpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.local_rank, 0);
}

TEST(Launch, SlurmDerivesAddressAndPortFromTheJob) {
  const Set slurm = {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "1234567"},
                     {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "gpu[003-007,9],other"}};
  const Launch launch = launch_in(slurm);
  EXPECT_EQ(launch.launcher, Launcher::slurm);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.address, "gpu003");
  EXPECT_EQ(launch.port, 20'000 + 1234567 % 20'000);
  EXPECT_EQ(launch.run_id, "1234567.0");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "one,two")).address, "one");
  EXPECT_EQ(launch_in(with(slurm, "SLURM_STEP_NODELIST", "n[7]")).address, "n7");
  EXPECT_EQ(launch_in(with(slurm, "MASTER_ADDR", "chosen")).address, "chosen");
  // A batch script is no rank.
  EXPECT_EQ(launch_in(without(slurm, "SLURM_STEP_ID")).launcher, Launcher::none);
  // torchrun inside of srun: the inner one counts.
  Set both = slurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(launch_in(both).launcher, Launcher::torchrun);
}

TEST(Launch, ImpossibleValuesNameTheVariable) {
  const auto complaint = [](const Set& set) {
    const Finding finding = error_of([&] { launch_in(set); });
    EXPECT_EQ(finding.code, Exit::usage);
    return finding.where.key;
  };
  EXPECT_EQ(complaint(with(kTorchrun, "RANK", "8")), "RANK");
  EXPECT_EQ(complaint(with(kTorchrun, "RANK", "-1")), "RANK");
  EXPECT_EQ(complaint(with(kTorchrun, "RANK", "5x")), "RANK");
  EXPECT_EQ(complaint(with(kTorchrun, "RANK", "")), "RANK");
  EXPECT_EQ(complaint(with(kTorchrun, "RANK", "99999999999999999999")), "RANK");
  EXPECT_EQ(complaint(without(kTorchrun, "RANK")), "RANK");
  EXPECT_EQ(complaint(without(kTorchrun, "WORLD_SIZE")), "WORLD_SIZE");
  EXPECT_EQ(complaint(with(kTorchrun, "WORLD_SIZE", "0")), "WORLD_SIZE");
  EXPECT_EQ(complaint(with(kTorchrun, "LOCAL_WORLD_SIZE", "9")), "LOCAL_WORLD_SIZE");
  EXPECT_EQ(complaint(with(kTorchrun, "LOCAL_RANK", "4")), "LOCAL_RANK");
  EXPECT_EQ(complaint(with(with(kTorchrun, "RANK", "0"), "LOCAL_RANK", "1")), "LOCAL_RANK");
  EXPECT_EQ(complaint(with(kTorchrun, "MASTER_PORT", "65536")), "MASTER_PORT");
  EXPECT_EQ(complaint(without(kTorchrun, "MASTER_PORT")), "MASTER_PORT");
  EXPECT_EQ(complaint(without(kTorchrun, "MASTER_ADDR")), "MASTER_ADDR");
}

}  // namespace
}  // namespace fsdpctl
