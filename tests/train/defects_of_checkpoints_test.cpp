// Defects of the source in what it saves, keeps and takes; see defects_of_steps_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>

#include "formats/all_formats.h"
#include "lib/base/file.h"
#include "lib/train/models/model_config.h"
#include "tests/source_emulation/checkpoints.h"
#include "tests/source_emulation/lightrft.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"
#include "tests/train/run_to_save.h"

namespace fsdpctl::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRoom = 1000;   // files: more than any save has
const source::SaveParts kModelAlone{}, kEverything{true, true};

const FormatList& formats() {
  static const FormatList all = all_formats();
  return all;
}

SaverOptions saver_options(uint64_t keep) {
  SaverOptions options;
  options.format = find_format(formats(), "dcp");
  options.keep = keep;
  return options;
}

// Saves after each of two steps, on two ranks.
void save_twice(const TempDir& dir, uint64_t keep, const std::function<void(int save)>& before = {}) {
  on_all_ranks(RunToSave(), [&](RankOfRun& rank) {
    TrainingSaver saver(*rank.state, rank.world, rank.store, saver_options(keep));
    for (int i = 1; i <= 2; ++i) {
      rank.step();
      if (before && rank.world.rank() == 0) before(i);
      rank.world.barrier("a save");
      try {
        saver.save(dir / ("step-" + std::to_string(i)));
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Exit::failed);
      }
    }
  });
}

// ---- C2

struct RotationOutcome {
  bool old_one_outlives_a_failure = false;   // of the save that should replace the only one
  bool others_are_left_alone = false;        // directories that are no saves of the run
  bool zero_has_a_meaning = false;
};
bool rotation_is_safe(const RotationOutcome& o) {
  return o.old_one_outlives_a_failure && o.others_are_left_alone && o.zero_has_a_meaning;
}

TEST(Defects, Defect_C2_TheOldCheckpointIsDeletedBeforeTheNewOneIsThere) {
  RotationOutcome theirs;
  {
    const TempDir dir(TempDir::Place::memory);
    source::save_ckpt(dir.path(), 1, 2, kEverything, 1, kRoom);
    EXPECT_THROW(source::save_ckpt(dir.path(), 2, 2, kEverything, 1, /*room=*/3), source::PythonError);
    theirs.old_one_outlives_a_failure = fs::exists(dir / "global_step1");
  }
  {
    const TempDir dir(TempDir::Place::memory);
    put_file(dir / "notes/thesis.txt", "years of work");
    source::save_ckpt(dir.path(), 1, 2, kEverything, 1, kRoom);
    theirs.others_are_left_alone = fs::exists(dir / "notes/thesis.txt");
    EXPECT_THROW(source::save_ckpt(dir / "new", 1, 2, kEverything, 0, kRoom), source::PythonError);
  }
  EXPECT_FALSE(theirs.old_one_outlives_a_failure || theirs.others_are_left_alone || theirs.zero_has_a_meaning);
  EXPECT_FALSE(rotation_is_safe(theirs));

  RotationOutcome ours;
  {
    const TempDir dir(TempDir::Place::memory);
    save_twice(dir, 1, [](int save) {
      if (save == 2) set_fault_hook([](std::string_view operation, const std::string&) { return operation == "write" ? ENOSPC : 0; });
    });
    set_fault_hook(nullptr);
    ours.old_one_outlives_a_failure = fs::exists(dir / "step-1/.metadata") && !fs::exists(dir / "step-2");
  }
  {
    const TempDir dir(TempDir::Place::memory);
    put_file(dir / "notes/thesis.txt", "years of work");
    put_file(dir / "step-0/mine.txt", "named as a save, but none");
    save_twice(dir, 1);
    ours.others_are_left_alone = fs::exists(dir / "notes/thesis.txt") && fs::exists(dir / "step-0/mine.txt");
    EXPECT_FALSE(fs::exists(dir / "step-1"));   // its turn had come
    EXPECT_TRUE(fs::exists(dir / "step-2"));
  }
  {
    const TempDir dir(TempDir::Place::memory);
    save_twice(dir, 0);
    ours.zero_has_a_meaning = fs::exists(dir / "step-1") && fs::exists(dir / "step-2");   // all are kept
  }
  EXPECT_TRUE(rotation_is_safe(ours));
}

// ---- C3

struct WritingOutcome {
  uint64_t size = 0, written_by_all = 0;   // of the checkpoint, and by all ranks together
  bool complete_when_anyone_returns = false;
};
bool each_part_is_written_once(const WritingOutcome& o) { return o.size > 0 && o.size == o.written_by_all && o.complete_when_anyone_returns; }

TEST(Defects, Defect_C3_AllRanksWriteTheSameFiles) {
  const TempDir dir(TempDir::Place::memory);
  WritingOutcome theirs;   // in files; there is no barrier at the end
  for (const auto& [file, writers] : source::save_ckpt(dir / "theirs", 1, 2, kEverything, 3, kRoom).writers) {
    theirs.size += 1;
    theirs.written_by_all += static_cast<uint64_t>(writers);
  }
  EXPECT_GT(theirs.written_by_all, theirs.size);
  EXPECT_FALSE(each_part_is_written_once(theirs));

  WritingOutcome ours{0, 0, true};   // in bytes
  std::mutex mutex;
  on_all_ranks(RunToSave(), [&](RankOfRun& rank) {
    rank.step();
    TrainingSaver saver(*rank.state, rank.world, rank.store, saver_options(0));
    const SaveReport report = saver.save(dir / "step-1");
    const bool complete = fs::exists(dir / "step-1/.metadata");
    const std::lock_guard lock(mutex);
    ours.size = report.bytes;
    ours.written_by_all += report.bytes_written;
    ours.complete_when_anyone_returns &= complete;
  });
  EXPECT_TRUE(each_part_is_written_once(ours)) << ours.size << " bytes, written " << ours.written_by_all;
}

// ---- C4

struct CompletenessOutcome {
  bool everything_is_saved = false;
  bool partial_is_refused = false;    // when it is loaded, unless that is asked for
};
bool nothing_is_left_out(const CompletenessOutcome& o) { return o.everything_is_saved && o.partial_is_refused; }

TEST(Defects, Defect_C4_TrainersOmitOptimizerAndScheduler) {
  const TempDir dir(TempDir::Place::memory);
  source::save_ckpt(dir / "theirs", 1, 2, kModelAlone, 3, kRoom);
  const source::Loaded loaded = source::load_ckpt(dir / "theirs");   // goes on, with a warning
  EXPECT_EQ(loaded.warnings.size(), 2u);
  EXPECT_FALSE(nothing_is_left_out({loaded.state.contains("optimizer") && loaded.state.contains("scheduler"), false}));

  fs::create_directories(dir / "ours");
  CompletenessOutcome ours{true, true};
  std::mutex mutex;
  on_all_ranks(RunToSave(), [&](RankOfRun& rank) {
    rank.steps(2);
    TrainingSaver(*rank.state, rank.world, rank.store, saver_options(0)).save(dir / "ours/step-2");   // there is no way to say less
  });
  on_all_ranks(RunToSave(), [&](RankOfRun& rank) {
    FindingSink sink;
    Checkpoint checkpoint = open_checkpoint(formats(), dir / "ours", sink).checkpoint;
    const RestoreReport report = restore_training_state(checkpoint, *rank.state, rank.world);
    const std::lock_guard lock(mutex);
    ours.everything_is_saved &= report.optimizer && report.started_anew.empty() && report.step == 2 && rank.optimizer->schedule().taken() == 2;
  });
  // Weights alone, of a model of PyTorch's.
  RunToSave weights_alone;
  weights_alone.model = [] {
    return make_model(parse_model_config(R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80,
      "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2})", "config.json"));
  };
  on_all_ranks(weights_alone, [&](RankOfRun& rank) {
    FindingSink sink;
    Checkpoint checkpoint = open_checkpoint(formats(), test_data("llama/dcp"), sink).checkpoint;
    const Finding finding = error_of([&] { restore_training_state(checkpoint, *rank.state, rank.world); });
    RestoreOptions partial;
    partial.allow_partial = true;
    const RestoreReport report = restore_training_state(checkpoint, *rank.state, rank.world, partial);
    const std::lock_guard lock(mutex);
    ours.partial_is_refused &= finding.code == Exit::refused && !report.optimizer && !report.started_anew.empty();
  });
  EXPECT_TRUE(nothing_is_left_out(ours));
}

// ---- C7

struct NewestOutcome {
  std::string taken;
  bool says_why = false;
};
bool takes_the_newest_complete_one(const NewestOutcome& o, const std::string& complete) { return o.taken == complete && o.says_why; }

TEST(Defects, Defect_C7_IncompleteCheckpointsLookValid) {
  const TempDir dir(TempDir::Place::memory);
  source::save_ckpt(dir / "theirs", 10, 2, kEverything, 3, kRoom);
  EXPECT_THROW(source::save_ckpt(dir / "theirs", 20, 2, kEverything, 3, /*room=*/5), source::PythonError);
  const source::Loaded loaded = source::load_ckpt(dir / "theirs");
  EXPECT_FALSE(takes_the_newest_complete_one({loaded.path, !loaded.warnings.empty()}, "global_step10"));

  // Ours publishes nothing that is incomplete; and what others left so is passed over, whatever is missing.
  for (const char* missing : {".metadata", "__1_0.distcp"}) {
    const std::string run = dir / std::string("ours") + missing;
    fs::create_directories(run);
    for (const char* step : {"/step-10", "/step-20"}) fs::copy(test_data("llama/dcp"), run + step);
    fs::remove(run + "/step-20/" + missing);
    FindingSink sink;
    const Opened opened = open_checkpoint(formats(), run, sink);
    EXPECT_TRUE(takes_the_newest_complete_one({opened.chosen, !opened.passed_over.empty()}, "step-10")) << missing;
  }
}

}  // namespace
}  // namespace fsdpctl::train
