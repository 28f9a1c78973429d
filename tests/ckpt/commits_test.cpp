// A job is entered in the journal only after its data was synced; one sync serves all jobs that wait.
#include "lib/ckpt/commits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

JobRecord job(uint64_t number) {
  JobRecord record;
  record.job = number;
  return record;
}

class CommitsTest : public testing::Test {
 protected:
  CommitsTest() {
    for (const std::string& path : paths_) write_new_file(path, "data");
    set_fault_hook([this](std::string_view operation, const std::string& path) {
      if (operation == "sync") done_.push_back("sync " + base_name(path));
      if (operation == "write" && base_name(path) == "journal") done_.push_back("line");
      return operation == "sync" ? sync_error_ : 0;
    });
    journal_.emplace(path("journal"), 1, [](const JobRecord&) { return true; });
    done_.clear();
  }
  ~CommitsTest() override { set_fault_hook(nullptr); }

  std::string path(const std::string& name) const { return dir_ / name; }
  // Numbers of the jobs that a next run would find.
  std::vector<uint64_t> journaled() {
    std::vector<uint64_t> jobs;
    Journal(path("journal"), 1, [&](const JobRecord& record) { return jobs.push_back(record.job), true; });
    return jobs;
  }

  TempDir dir_;
  std::vector<std::string> paths_ = {path("a"), path("b")};
  std::vector<std::string> done_;   // what reached the disk, in order
  int sync_error_ = 0;
  std::optional<Journal> journal_;
};

TEST_F(CommitsTest, JobsWaitForTheInterval) {
  Commits commits(*journal_, paths_, 1h);
  commits.add(0, job(5));
  commits.add(1, job(6));
  EXPECT_THAT(done_, IsEmpty());
  EXPECT_THAT(journaled(), IsEmpty());
}

TEST_F(CommitsTest, DueJobsAreSyncedBeforeTheirLines) {
  Commits commits(*journal_, paths_, 0ms);
  commits.add(1, job(5));
  EXPECT_THAT(done_, ElementsAre("sync b", "line"));
  EXPECT_THAT(journaled(), ElementsAre(5));
}

TEST_F(CommitsTest, OneSyncOfAFileServesAllItsJobs) {
  Commits commits(*journal_, paths_, 1h);
  for (const uint64_t number : {1, 2, 3}) commits.add(0, job(number));
  commits.add(1, job(4));
  commits.flush();
  EXPECT_THAT(done_, ElementsAre("sync a", "sync b", "line", "line", "line", "line"));
  EXPECT_THAT(journaled(), ElementsAre(1, 2, 3, 4));
  commits.flush();
  EXPECT_EQ(done_.size(), 7u);   // the sync of journaled()
}

TEST_F(CommitsTest, ASyncedFileNeedsNoOther) {
  Commits commits(*journal_, paths_, 1h);
  commits.add(0, job(1));
  commits.add(1, job(2));
  commits.add(0, job(3));
  commits.synced(0);
  EXPECT_THAT(done_, ElementsAre("line", "line"));
  EXPECT_THAT(journaled(), ElementsAre(1, 3));
}

TEST_F(CommitsTest, LongLinesDoNotWait) {
  Commits commits(*journal_, paths_, 1h);
  JobRecord many = job(1);
  many.tensors.resize(100'000);
  int added = 0;
  while (done_.empty() && ++added < 100) commits.add(0, many);
  EXPECT_GT(added, 1);
  EXPECT_LT(added, 10);
}

TEST_F(CommitsTest, WhatCouldNotBeSyncedIsNotEntered) {
  Commits commits(*journal_, paths_, 1h);
  commits.add(0, job(1));
  sync_error_ = EIO;
  EXPECT_THROW(commits.flush(), Error);
  sync_error_ = 0;
  EXPECT_THAT(journaled(), IsEmpty());
}

}  // namespace
}  // namespace fsdpctl
