#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "formats/all_formats.h"
#include "lib/base/file.h"
#include "lib/train/old_saves.h"
#include "lib/train/store_coordinator.h"
#include "tests/support/temp_dir.h"
#include "tests/train/run_to_save.h"

namespace fsdpctl::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const FormatList& formats() {
  static const FormatList all = all_formats();
  return all;
}

class Saver : public testing::Test {
 protected:
  Saver() {
    options.format = find_format(formats(), "dcp");
    options.patience = Milliseconds(20'000);
    run.shards = 3;
    run.micro_batches = 3;
    run.placement = ShardPlacement::per_parameter;
  }
  ~Saver() override { set_fault_hook(nullptr); }
  std::unique_ptr<TrainingSaver> saver_of(RankOfRun& rank) const {
    return std::make_unique<TrainingSaver>(*rank.state, rank.world, rank.store, options);
  }
  std::vector<std::string> there() const { return list_directory(dir.path()); }

  TempDir dir{TempDir::Place::memory};
  SaverOptions options;
  RunToSave run;
};

// What a save throws on this rank.
template <class Body>
std::optional<Finding> finding_of(Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.finding();
  }
  return std::nullopt;
}

TEST_F(Saver, AFullDiskOnOneRankFailsTheSaveOnAllAndTheRunGoesOn) {
  for (const bool background : {false, true}) {
    options.background = background;
    std::atomic<bool> full = true;
    set_fault_hook([&](std::string_view operation, const std::string& path) {
      return full && operation == "write" && path.find("__1_0.distcp") != std::string::npos ? ENOSPC : 0;
    });
    on_all_ranks(run, [&](RankOfRun& rank) {
      rank.steps(1);
      const auto saver = saver_of(rank);
      const auto finding = finding_of([&] {
        if (!background) return static_cast<void>(saver->save(dir / "step-1"));
        saver->start(dir / "step-1");
        saver->wait();
      });
      ASSERT_TRUE(finding);
      EXPECT_EQ(finding->code, Exit::failed);
      EXPECT_EQ(finding->where.rank, 1);
      EXPECT_THAT(Error(*finding).what(), HasSubstr("space"));
      rank.world.barrier("all have failed");
      EXPECT_THAT(there(), IsEmpty());
      full = false;
      rank.world.barrier("room again");
      rank.steps(1);
      EXPECT_EQ(saver->save(dir / "step-2").step, 2u);
    });
    EXPECT_THAT(there(), ElementsAre("step-2"));
    remove_tree(dir / "step-2");
  }
}

TEST_F(Saver, ARankThatDiesEndsTheSaveByName) {
  const auto findings = on_ranks(run, [&](RankOfRun& rank) {
    rank.steps(1);
    const auto saver = saver_of(rank);
    if (rank.world.rank() == 2) {
      Finding death = error(Exit::failed, "rank died");
      death.where.rank = 2;
      throw Error(death);
    }
    saver->save(dir / "step-1");
  });
  for (const auto& finding : findings) {
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->what, "rank died");
    EXPECT_EQ(finding->where.rank, 2);
  }
  EXPECT_THAT(there(), IsEmpty());
}

TEST_F(Saver, ARankThatHangsEndsTheSaveInBoundedTime) {
  options.patience = Milliseconds(300);
  std::atomic<int> ended = 0;
  const auto findings = on_ranks(run, [&](RankOfRun& rank) {
    const auto saver = saver_of(rank);
    if (rank.world.rank() == 1) {
      while (ended < 2) std::this_thread::sleep_for(Milliseconds(5));
      return;
    }
    const auto finding = finding_of([&] { saver->save(dir / "step-0"); });
    ++ended;
    if (finding) throw Error(*finding);
  });
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(findings[static_cast<size_t>(rank)]) << rank;
    EXPECT_EQ(findings[static_cast<size_t>(rank)]->what, "a rank takes no part in a save");
    EXPECT_EQ(findings[static_cast<size_t>(rank)]->where.rank, 1);
  }
  EXPECT_THAT(there(), IsEmpty());
}

// The training communicator is in use all the while: anything that a save sent over it would meet a step's collectives.
TEST_F(Saver, InTheBackgroundNeverMeetsTraining) {
  options.background = true;
  on_all_ranks(run, [&](RankOfRun& rank) {
    const auto saver = saver_of(rank);
    for (int i = 0; i < 6; ++i) {
      rank.steps(1);
      saver->start(dir / ("step-" + std::to_string(i)));
      rank.steps(1);
    }
    EXPECT_EQ(saver->wait()->path, dir / "step-5");
    EXPECT_FALSE(saver->finished());
  });
  EXPECT_EQ(there().size(), 6u);
}

TEST_F(Saver, KeepsTheLastOnesAndWhatIsNotItsOwn) {
  options.keep = 2;
  make_directory(dir / "step-1");                     // no checkpoint of ours
  put_file(dir / "step-1/.metadata", "somebody's");
  put_file(dir / "notes-2", "not of the series");
  on_all_ranks(run, [&](RankOfRun& rank) {
    const auto saver = saver_of(rank);
    for (const int step : {90, 100, 110, 9}) {
      const SaveReport report = saver->save(dir / ("step-" + std::to_string(step)));
      const bool removes = rank.world.rank() == 0 && step == 110;
      EXPECT_EQ(report.removed, removes ? std::vector<std::string>{dir / "step-90"} : std::vector<std::string>());
    }
  });
  EXPECT_THAT(there(), ElementsAre("notes-2", "step-1", "step-100", "step-110", "step-9"));
  // One that was converted is somebody's, too.
  std::string manifest = get_file(dir / "step-100/fsdpctl.manifest.json");
  const size_t at = manifest.find("\"training\"");
  ASSERT_NE(at, std::string::npos);
  put_file(dir / "step-100/fsdpctl.manifest.json", manifest.replace(at, 10, "\"dcp\""));
  EXPECT_THAT(remove_old_saves(dir / "step-110", 1), ElementsAre(dir / "step-9"));
  EXPECT_THAT(there(), ElementsAre("notes-2", "step-1", "step-100", "step-110"));
}

TEST_F(Saver, NothingIsRemovedBeforeTheNewOneIsPublished) {
  options.keep = 1;
  on_all_ranks(run, [&](RankOfRun& rank) {
    const auto saver = saver_of(rank);
    saver->save(dir / "step-1");
    rank.world.barrier("saved");
    if (rank.world.rank() == 0) {
      set_fault_hook([](std::string_view operation, const std::string& path) {
        return operation == "rename" && path.find("partial") != std::string::npos ? EIO : 0;
      });
    }
    rank.world.barrier("a disk that fails at the last moment");
    EXPECT_TRUE(finding_of([&] { saver->save(dir / "step-2"); }));
  });
  EXPECT_THAT(there(), ElementsAre("step-1"));
}

TEST_F(Saver, RanksThatAreOfDifferentStepsAreFound) {
  on_all_ranks(run, [&](RankOfRun& rank) {
    const auto saver = saver_of(rank);
    if (rank.world.rank() == 1) ++rank.state->samples;
    const auto finding = finding_of([&] { saver->save(dir / "step-1"); });
    ASSERT_TRUE(finding);
    EXPECT_EQ(finding->what, "ranks disagree about the checkpoint that they write");
  });
  EXPECT_THAT(there(), IsEmpty());
}

TEST(StoreCoordinator, CarriesMuchAndLeavesLittle) {
  auto store = std::make_shared<LocalStore>();
  const std::string large(17 << 20, 'x');   // more than a value may have
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      StoreCoordinator ranks(store, "save", rank, 3, Milliseconds(20'000));
      for (int i = 0; i < 2; ++i) {
        const std::string answer = ranks.meet("much", {large + std::to_string(rank), std::nullopt}, [&](const std::vector<std::string>& all) {
          return all[0] + all[2];
        });
        right += answer == large + "0" + large + "2";
        ranks.make_progress();
      }
      ranks.meet("last", {}, [](const auto&) { return std::string(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 6);
  EXPECT_FALSE(store->find("save/0 much/answer/0"));
  EXPECT_FALSE(store->find("save/1 much/answer/1"));
  EXPECT_FALSE(store->find("save/1 much/1/0"));
  EXPECT_FALSE(store->find("save/1 much/1/1"));
}

// A rank that writes for long keeps the others waiting for longer than their patience.
TEST(StoreCoordinator, WaitsWhileThereIsProgress) {
  auto store = std::make_shared<LocalStore>();
  std::thread slow([&] {
    StoreCoordinator ranks(store, "save", 1, 2, Milliseconds(200));
    for (int i = 0; i < 60; ++i) {
      std::this_thread::sleep_for(Milliseconds(10));
      ranks.make_progress();
    }
    ranks.meet("slow", {"done", std::nullopt}, {});
  });
  StoreCoordinator ranks(store, "save", 0, 2, Milliseconds(200));
  EXPECT_EQ(ranks.meet("slow", {}, [](const std::vector<std::string>& all) { return all[1]; }), "done");
  slow.join();
}

}  // namespace
}  // namespace fsdpctl::train
