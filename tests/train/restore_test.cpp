// What is refused, what is started anew, and what is said about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/all_formats.h"
#include "lib/base/file.h"
#include "lib/ckpt/placement.h"
#include "lib/ckpt/publish.h"
#include "lib/ckpt/select.h"
#include "lib/ckpt/untie.h"
#include "lib/train/config_changes.h"
#include "lib/train/models/mlp.h"
#include "tests/support/temp_dir.h"
#include "tests/train/run_to_save.h"

namespace fsdpctl::train {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

const FormatList& formats() {
  static const FormatList all = all_formats();
  return all;
}

Opened opened(const std::string& path) {
  FindingSink sink(/*strict=*/false);
  return find_latest(formats(), path, sink);
}

class Restoring : public testing::Test {
 protected:
  void save(const std::string& path, std::string_view format = "dcp") {
    on_all_ranks(run, [&](RankOfRun& rank) {
      rank.steps(2);
      saved.add(rank);
      SaverOptions saving;
      saving.format = find_format(formats(), format);
      TrainingSaver(*rank.state, rank.world, rank.store, saving).save(path);
    });
  }

  RestoreReport restored(const RunToSave& into, const std::string& path, WholeState* loaded = nullptr) {
    RestoreReport report;
    on_all_ranks(into, [&](RankOfRun& rank) {
      Opened from = opened(path);
      RestoreReport mine = restore_training_state(from.checkpoint, *rank.state, rank.world, options);
      EXPECT_EQ(rank.state->step, mine.step);
      if (loaded != nullptr) loaded->add(rank);
      if (rank.world.rank() == 0) report = std::move(mine);
    });
    return report;
  }

  // On every rank, which then is as it was.
  Finding refused(const RunToSave& into, const std::string& path) {
    WholeState before, after;
    const auto findings = on_ranks(into, [&](RankOfRun& rank) {
      rank.steps(1);
      before.add(rank);
      Opened from = opened(path);
      std::optional<Finding> finding;
      try {
        restore_training_state(from.checkpoint, *rank.state, rank.world, options);
      } catch (const Error& e) {
        finding = e.finding();
      }
      after.add(rank);
      EXPECT_EQ(rank.state->step, 1u);
      rank.world.barrier("all have looked");
      if (finding) throw Error(*finding);
    });
    for (const auto& finding : findings) {
      EXPECT_TRUE(finding);
      if (finding) {
        EXPECT_EQ(finding->what, findings[0]->what);
      }
    }
    EXPECT_EQ(before.tensors, after.tensors);
    return findings[0].value_or(Finding());
  }

  // Another checkpoint made of a saved one, as convert does it.
  void convert(const std::string& from, const std::string& to, std::string_view format, const Selection& selection) {
    const Opened source = opened(from);
    std::vector<Change> changes;
    Checkpoint chosen = select(source.checkpoint, selection, changes);
    const Format& writer = *find_format(formats(), format);
    if (!writer.capabilities().ties) chosen = untied(chosen, changes);
    FindingSink sink(/*strict=*/false);
    resolve_pieces(chosen, 1, sink);
    const TargetPlacement placement = place(chosen, 1);
    Target target;
    target.placement = &placement;
    target.file_name = base_name(to);
    target.directory = format == "dcp";
    publish(chosen, writer, target, to, {}, sink);
  }
  static Selection model_only() {
    Selection selection;
    selection.optimizer = selection.extra = false;
    return selection;
  }

  TempDir dir{TempDir::Place::memory};
  RunToSave run;
  RestoreOptions options;
  WholeState saved;
};

TEST_F(Restoring, FromAnyFormatThatTrainingWrites) {
  for (const char* name : {"state.pt", "state.safetensors", "state.h5"}) {
    const std::string format = std::string(name).ends_with("pt") ? "torch" : std::string(name).ends_with("h5") ? "hdf5" : "safetensors";
    save(dir / name, format);
    RunToSave other = run;
    other.shards = 4;
    WholeState loaded;
    const RestoreReport report = restored(other, dir / name, &loaded);
    EXPECT_EQ(loaded.tensors, saved.tensors) << name;
    EXPECT_EQ(report.format, format);
    EXPECT_EQ(report.step, 2u);
    EXPECT_EQ(report.samples, 16u);
    EXPECT_THAT(report.started_anew, IsEmpty()) << name;
    EXPECT_THAT(report.not_used, IsEmpty()) << name;
    EXPECT_THAT(report.config_changes, IsEmpty()) << name;
  }
}

TEST_F(Restoring, WeightsAloneOnlyWhenTold) {
  save(dir / "step-2");
  convert(dir / "step-2", dir / "weights.safetensors", "safetensors", model_only());
  const Finding finding = refused(run, dir / "weights.safetensors");
  EXPECT_EQ(finding.code, Exit::refused);
  EXPECT_EQ(finding.what, "checkpoint lacks state of the run");
  EXPECT_THAT(finding.hint, StartsWith("--allow-partial"));
  EXPECT_THAT(finding.found, HasSubstr("optimizer.state.embed.weight"));

  options.allow_partial = true;
  WholeState loaded;
  const RestoreReport report = restored(run, dir / "weights.safetensors", &loaded);
  EXPECT_FALSE(report.optimizer);
  EXPECT_EQ(report.step, 0u);
  for (const char* name : {"optimizer.state.embed.weight", "scheduler", "step", "samples"}) EXPECT_THAT(report.started_anew, Contains(name));
  EXPECT_EQ(loaded.tensors["embed.weight"], saved.tensors["embed.weight"]);
  EXPECT_EQ(loaded.tensors["embed.weight.step"], std::vector<float>{0});
}

TEST_F(Restoring, Weights16BitsWideOnlyWhenTold) {
  save(dir / "step-2");
  Selection narrow;
  narrow.cast = DType::bfloat16;
  convert(dir / "step-2", dir / "narrow", "dcp", narrow);
  const Finding finding = refused(run, dir / "narrow");
  EXPECT_EQ(finding.what, "checkpoint has no FP32 weights");
  EXPECT_THAT(finding.hint, StartsWith("--masters-from-model"));
  options.masters_from_model = true;
  const RestoreReport report = restored(run, dir / "narrow");
  EXPECT_THAT(report.widened, SizeIs(14));
  EXPECT_THAT(report.started_anew, IsEmpty());
  EXPECT_TRUE(report.optimizer);
}

TEST_F(Restoring, AnotherModelIsRefusedByNamesAndShapes) {
  save(dir / "step-2");
  RunToSave other = run;
  other.model = [] {
    MlpConfig config;
    config.vocab_size = 32;
    config.hidden_size = 12;
    config.intermediate_size = 24;
    config.num_hidden_layers = 4;
    return make_mlp(config);
  };
  const Finding finding = refused(other, dir / "step-2");
  EXPECT_EQ(finding.code, Exit::refused);
  EXPECT_EQ(finding.what, "the checkpoint is of another model");
  EXPECT_THAT(finding.found, HasSubstr("layers.0.up.weight has shape [20,12], not [24,12]"));
  EXPECT_THAT(finding.found, HasSubstr("layers.3.up.weight is missing"));
}

TEST_F(Restoring, AnotherOptimizerIsRefused) {
  save(dir / "step-2");
  RunToSave other = run;
  other.optimizer.optimizer.kind = OptimizerKind::adam;
  Finding finding = refused(other, dir / "step-2");
  EXPECT_EQ(finding.what, "optimizer state of another optimizer");
  other.optimizer.optimizer.kind = OptimizerKind::sgd;
  finding = refused(other, dir / "step-2");
  EXPECT_EQ(finding.code, Exit::refused);
  options.allow_partial = true;   // is about what is not there
  EXPECT_EQ(refused(other, dir / "step-2").code, Exit::refused);
}

TEST_F(Restoring, AnotherScalerIsRefusedUnlessTold) {
  run.compute = DType::float16;
  run.optimizer.scaler = default_scaler(DType::float16);
  save(dir / "step-2");
  RunToSave other = run;
  other.optimizer.scaler->growth_interval = 7;
  const Finding finding = refused(other, dir / "step-2");
  EXPECT_EQ(finding.what, "the loss scaler is configured differently from the saved one");
  EXPECT_THAT(finding.found, HasSubstr("growth_interval: 7, 1000"));
  options.other_scaler = true;
  EXPECT_EQ(restored(other, dir / "step-2").step, 2u);
}

TEST_F(Restoring, ChangedConfigIsListedAndWhatMustNotChangeRefused) {
  save(dir / "step-2");
  RunToSave other = run;
  other.config = R"({"model": {"hidden": 12}, "optimizer": {"kind": "adamw", "lr": 0.5}, "output": "elsewhere"})";
  options.fixed_config = {"model", "optimizer.kind"};
  options.free_config = {"output"};
  const RestoreReport report = restored(other, dir / "step-2");
  ASSERT_THAT(report.config_changes, SizeIs(1));
  EXPECT_EQ(report.config_changes[0].key, "optimizer.lr");
  EXPECT_EQ(report.config_changes[0].saved, "0.01");
  EXPECT_EQ(report.config_changes[0].now, "0.5");

  other.config = R"({"model": {"hidden": 16}, "optimizer": {"kind": "adamw", "lr": 0.5}})";
  const Finding finding = refused(other, dir / "step-2");
  EXPECT_EQ(finding.code, Exit::refused);
  EXPECT_EQ(finding.what, "configuration is not the one of the checkpoint");
  EXPECT_EQ(finding.found, "model.hidden: 16, not 12");
}

TEST_F(Restoring, DamageOnOneRankLeavesAllAsTheyWere) {
  save(dir / "step-2");
  // A byte of what one rank holds: the CRC-32 of its item tells.
  const std::string path = dir / "step-2/__1_0.distcp";
  std::string bytes = get_file(path);
  for (size_t at = 1000; at < bytes.size() && at < 1200; ++at) bytes[at] = static_cast<char>(bytes[at] ^ 1);
  put_file(path, bytes);
  EXPECT_EQ(refused(run, dir / "step-2").code, Exit::damaged);
}

TEST_F(Restoring, TheNewestCompleteOneIsTakenAndNewerOnesAreNamed) {
  make_directory(dir / "run");
  save(dir / "run/step-9");
  save(dir / "run/step-10");
  save(dir / "run/step-11");
  std::filesystem::remove(dir / "run/step-11/__1_0.distcp");
  make_directories(dir / "run/step-12.partial-0123456789abcdef/data");
  const Opened latest = opened(dir / "run");
  EXPECT_EQ(latest.chosen, "step-10");
  ASSERT_THAT(latest.passed_over, SizeIs(1));
  EXPECT_THAT(latest.passed_over[0], StartsWith("step-11: "));
  EXPECT_EQ(opened(dir / "run/step-9").chosen, "");

  make_directory(dir / "new");
  try {
    opened(dir / "new");
    FAIL() << "no Error";
  } catch (const Error& e) {
    EXPECT_EQ(e.finding().what, "no checkpoint to resume from");
    EXPECT_EQ(e.code(), Exit::failed);
  }
}

TEST(ConfigChanges, AreFoundByKey) {
  const auto keys = [](std::string_view saved, std::string_view now) {
    std::vector<std::string> found;
    for (const ConfigChange& c : config_changes(saved, now, {})) found.push_back(c.key + ": " + c.saved + " -> " + c.now);
    return found;
  };
  EXPECT_THAT(keys(R"({"a": {"b": 1, "c": [1, 2]}, "d": {}})", R"({"d": {}, "a": {"c": [1, 2], "b": 1}})"), IsEmpty());
  EXPECT_THAT(keys(R"({"a": {"b": 1}, "x": 1})", R"({"a": {"b": 2, "c": null}})"), ElementsAre("a.b: 1 -> 2", "a.c:  -> null", "x: 1 -> "));
  EXPECT_THAT(keys(R"({"a": [1]})", R"({"a": {"b": 1}})"), ElementsAre("a: [1] -> ", "a.b:  -> 1"));
  EXPECT_THROW(keys("[", "{}"), Error);
  const std::vector<std::string> fixed = {"model", "optimizer.kind"};
  EXPECT_TRUE(is_at_or_below("model.hidden", fixed));
  EXPECT_FALSE(is_at_or_below("models", fixed));
  EXPECT_FALSE(is_at_or_below("optimizer", fixed));
}

}  // namespace
}  // namespace fsdpctl::train
