#include "lib/comm/local_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "lib/comm/launch.h"
#include "tests/support/error_of.h"

namespace fsdpctl {
namespace {

using testing::HasSubstr;

// A directory for what the ranks write.
class Launching : public testing::Test {
 protected:
  Launching() {
    char name[] = "/tmp/fsdpctl-launch-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~Launching() override {
    if (std::system(("rm -r '" + directory_ + "'").c_str()) != 0) ADD_FAILURE();
  }
  LocalLaunch shell(int nproc, const std::string& script) const {
    LocalLaunch launch;
    launch.nproc = nproc;
    launch.argv = {"/bin/sh", "-c", "cd '" + directory_ + "'; " + script};
    launch.grace = Milliseconds(300);
    return launch;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(directory_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string directory_;
};

TEST_F(Launching, RanksGetTheVariablesThatReadLaunchReads) {
  LocalLaunch launch = shell(3, "env > env.$RANK");
  launch.environment = {"MINE=yes", "HOME=/nowhere"};
  const LocalOutcome outcome = launch_local(launch);
  EXPECT_EQ(outcome.code, Exit::ok);
  EXPECT_FALSE(outcome.finding);
  for (int rank = 0; rank < 3; ++rank) {
    std::map<std::string, std::string> set;
    std::ifstream file(directory_ + "/env." + std::to_string(rank));
    for (std::string line; std::getline(file, line);) set[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    EXPECT_EQ(set["MINE"], "yes");
    EXPECT_EQ(set["HOME"], "/nowhere");
    const Launch read = read_launch([&](const char* name) {
      return set.count(name) ? std::optional(set[name]) : std::nullopt;
    });
    EXPECT_EQ(read.rank, rank);
    EXPECT_EQ(read.local_rank, rank);
    EXPECT_EQ(read.world_size, 3);
    EXPECT_EQ(read.local_world_size, 3);
    EXPECT_EQ(read.address, "127.0.0.1");
    EXPECT_GT(read.port, 0);
    EXPECT_TRUE(read.store_is_served);
    EXPECT_EQ(read.run_id.size(), 16u);
  }
}

TEST_F(Launching, TheFailingRanksExitCodeIsTheOutcome) {
  const auto begin = std::chrono::steady_clock::now();
  // The others would run for ever, and do not listen to SIGTERM.
  const LocalOutcome outcome =
      launch_local(shell(3, "trap '' TERM; if [ $RANK = 1 ]; then exit 3; fi; echo $$ > pid.$RANK; sleep 600"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, Milliseconds(20'000));
  EXPECT_EQ(outcome.code, Exit::damaged);
  ASSERT_TRUE(outcome.finding);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  EXPECT_EQ(outcome.finding->found, "exit code 3");
  for (const char* name : {"pid.0", "pid.2"}) {
    const std::string pid = read(name);
    if (!pid.empty()) {
      EXPECT_EQ(kill(std::stoi(pid), 0), -1);   // none is left
    }
  }
}

TEST_F(Launching, ARankThatASignalEndedIsNamedWithIt) {
  const LocalOutcome outcome = launch_local(shell(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 600"));
  EXPECT_EQ(outcome.code, Exit::failed);
  EXPECT_EQ(outcome.finding->where.rank, 1);
  EXPECT_THAT(outcome.finding->found, HasSubstr("signal 9 (Killed)"));
}

TEST_F(Launching, WhatCannotBeStarted) {
  LocalLaunch launch = shell(2, "");
  launch.argv[0] = directory_ + "/missing";
  const Finding finding = error_of([&] { launch_local(launch); });
  EXPECT_EQ(finding.code, Exit::failed);
  EXPECT_THAT(finding.where.path, HasSubstr("missing"));
  launch.nproc = 0;
  EXPECT_EQ(error_of([&] { launch_local(launch); }).code, Exit::usage);
}

// The launcher as a process of its own, to be sent signals.
class LauncherProcess {
 public:
  explicit LauncherProcess(const LocalLaunch& launch) : pid_(fork()) {
    if (pid_ == 0) _exit(static_cast<int>(launch_local(launch).code));
  }
  void signal(int number) const { kill(pid_, number); }
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  const pid_t pid_;
};

bool appears(const std::string& path) {
  for (int i = 0; i < 1000; ++i) {
    if (access(path.c_str(), F_OK) == 0) return true;
    std::this_thread::sleep_for(Milliseconds(10));
  }
  return false;
}

TEST_F(Launching, SignalsArePassedOnAndTheRanksMayTakeTheirTime) {
  for (const int number : {SIGTERM, SIGINT}) {
    // Rank 1 needs longer than the grace to save.
    const std::string name = number == SIGTERM ? "TERM" : "INT";
    const std::string script = "trap '[ $RANK = 1 ] && sleep 0.6; echo saved > saved." + name + ".$RANK; exit " +
                               std::to_string(128 + number) + "' " + name + "; echo > ready." + name +
                               ".$RANK; while :; do sleep 0.02; done";
    const LauncherProcess launcher(shell(2, script));
    ASSERT_TRUE(appears(directory_ + "/ready." + name + ".0") && appears(directory_ + "/ready." + name + ".1"));
    launcher.signal(number);
    EXPECT_EQ(launcher.wait(), 128 + number);
    EXPECT_EQ(read("saved." + name + ".0"), "saved\n");
    EXPECT_EQ(read("saved." + name + ".1"), "saved\n");
  }
}

TEST_F(Launching, NoRankOutlivesAKilledLauncher) {
  const LauncherProcess launcher(shell(2, "echo $$ > pid.$RANK; mv pid.$RANK ready.$RANK; exec sleep 600"));
  ASSERT_TRUE(appears(directory_ + "/ready.0") && appears(directory_ + "/ready.1"));
  launcher.signal(SIGKILL);
  EXPECT_EQ(launcher.wait(), -SIGKILL);
  for (const char* name : {"ready.0", "ready.1"}) {
    const pid_t pid = std::stoi(read(name));
    // Gone, or a zombie that whoever adopted it has not reaped yet.
    bool gone = false;
    for (int i = 0; i < 500 && !gone; ++i) {
      std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
      std::string number, command, state;
      gone = !(stat >> number >> command >> state) || state == "Z" || state == "X";
      if (!gone) std::this_thread::sleep_for(Milliseconds(10));
    }
    EXPECT_TRUE(gone) << name;
  }
}

}  // namespace
}  // namespace fsdpctl
