// Defects of the source in what it takes; see defects_of_steps_test.cpp.
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/all_formats.h"
#include "lib/ckpt/format.h"
#include "tests/source_emulation/checkpoints.h"
#include "tests/source_emulation/lightrft.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRoom = 1000;   // files: more than any save has
const source::SaveParts kEverything{true, true};

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
    const FormatList formats = all_formats();
    const Opened opened = open_checkpoint(formats, run, sink);
    EXPECT_TRUE(takes_the_newest_complete_one({opened.chosen, !opened.passed_over.empty()}, "step-10")) << missing;
  }
}

}  // namespace
}  // namespace fsdpctl::train
