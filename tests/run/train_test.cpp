// fsdpctl train as a user has it: ranks that are processes, saved, killed, resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "tests/run/run_folder.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(Train, TrainsSavesAndSaysSo) {
  const RunFolder run;
  const ProcessResult result = run.train({"--nproc", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("step 6  loss "));
  EXPECT_THAT(result.out, HasSubstr("saved out/step-4"));
  EXPECT_THAT(result.out, HasSubstr("trained to step 6: out/step-6"));
  for (const char* step : {"out/step-2", "out/step-4", "out/step-6"}) {
    EXPECT_EQ(run.fsdpctl({"verify", "--data", step}).exit_code, 0) << step;
  }
  const auto metrics = run.metrics();
  ASSERT_EQ(metrics.size(), 6u);
  for (size_t i = 0; i < metrics.size(); ++i) EXPECT_EQ(metrics[i]["step"], i + 1);
  EXPECT_LT(metrics[5]["loss"], metrics[0]["loss"]);
  EXPECT_TRUE(metrics[0]["validation_loss"].is_null());
}

TEST(Train, TheWorldSizeDoesNotMatterWhereMicroBatchesAreTheSame) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--nproc", "4", "--set", "checkpoint.directory=w4"}).exit_code, 0);
  ASSERT_EQ(run.train({"--set", "checkpoint.directory=w1"}).exit_code, 0);
  EXPECT_TRUE(run.same_state("w4/step-6", "w1/step-6"));
  ASSERT_EQ(run.train({"--set", "checkpoint.directory=other", "--set", "training.seed=4"}).exit_code, 0);
  EXPECT_FALSE(run.same_state("other/step-6", "w1/step-6"));
}

TEST(Train, AKilledRunGoesOnBitForBit) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--nproc", "2", "--set", "checkpoint.directory=whole"}).exit_code, 0);
  const std::string script =
      "\"$fsdpctl\" train c.json --nproc 2 --set training.steps=100000 & pid=$!\n"
      "until [ -e out/step-4 ]; do kill -0 $pid || exit 1; sleep 0.01; done\n"
      "kill -9 $pid; wait $pid";
  EXPECT_EQ(run.shell(script).exit_code, 137);
  // The ranks went with it, so that the lock is free.
  const std::string later = run.newest_whole();
  ASSERT_THAT(later, HasSubstr("step-"));
  for (const auto& entry : fs::directory_iterator(run.dir / "out")) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-") && name != "step-2") fs::remove_all(entry.path());
  }
  ProcessResult result;
  for (int attempt = 0; attempt < 100; ++attempt) {   // the ranks are told by the kernel, a moment later
    result = run.train({"--nproc", "2", "--resume", "latest"});
    if (result.err.find("another run is at work") == std::string::npos) break;
  }
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("newest complete checkpoint taken"));
  EXPECT_THAT(result.out, HasSubstr("resumed out/step-2 at step 2"));
  EXPECT_TRUE(run.same_state("out/step-6", "whole/step-6"));
  const auto metrics = run.metrics(), whole = run.metrics("whole");
  ASSERT_EQ(metrics.size(), 6u);   // later lines of the killed run are gone
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(metrics[i]["loss"], whole[i]["loss"]) << i;
}

TEST(Train, AnotherNumberOfRanksGoesOn) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--nproc", "2", "--set", "training.steps=4", "--set", "schedule.total_steps=6"}).exit_code, 0);
  for (const auto& [ranks, format] : std::vector<std::pair<std::string, std::string>>{{"1", "torch"}, {"4", "dcp"}}) {
    const std::string directory = "w" + ranks;
    const ProcessResult result = run.train({"--nproc", ranks, "--resume", "out/step-4", "--set", "checkpoint.directory=" + directory, "--set",
                                            "checkpoint.format=" + format});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(run.fsdpctl({"verify", "--data", directory + "/step-6"}).exit_code, 0);
  }
}

TEST(Train, ASignalSavesAndEnds) {
  for (const auto& [signal, code] : std::vector<std::pair<std::string, int>>{{"TERM", 143}, {"INT", 130}}) {
    const RunFolder run;
    const std::string script =
        "\"$fsdpctl\" train c.json --nproc 2 --set training.steps=100000 --set checkpoint.interval=0 > log & pid=$!\n"
        "until grep -q 'step ' log; do kill -0 $pid || exit 1; sleep 0.01; done\n"
        "kill -" + signal + " $pid; wait $pid";
    const ProcessResult result = run.shell(script);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped by a signal"));
    EXPECT_EQ(errors_in(result.err), 0u) << result.err;
    EXPECT_THAT(run.newest_whole(), HasSubstr("step-"));
  }
}

TEST(Train, WithoutTheLauncherItIsTheRankThatTheEnvironmentSays) {
  const RunFolder run;
  const std::string script =
      "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) FSDPCTL_RUN_ID=x LOCAL_WORLD_SIZE=2\n"
      "for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank \"$fsdpctl\" train c.json --set training.steps=2 > log$rank & pids+=($!); done\n"
      "wait ${pids[0]} && wait ${pids[1]} && cat log1 >&2 && cat log0";
  const ProcessResult result = run.shell(script);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");   // rank 0 speaks for all
  EXPECT_THAT(result.out, HasSubstr("trained to step 2"));
}

TEST(Train, ADryRunSaysWhatWouldBe) {
  const RunFolder run;
  const ProcessResult result = run.train({"--dry-run", "--nproc", "4", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["world_size"], 4);
  EXPECT_EQ(lines[0]["parameters"], 2 * 256 * 16 + 16 + 2 * (4 * 16 * 16 + 3 * 16 * 24 + 2 * 16));
  EXPECT_EQ(lines[0]["checkpoint_bytes"], lines[0]["parameters"].get<int64_t>() * 12);
  EXPECT_FALSE(fs::exists(run.dir / "out"));
  EXPECT_THAT(run.train({"--dry-run"}).out, HasSubstr("6 of 128 tokens"));
}

// docs/json.md and the program say the same.
TEST(Train, JsonIsWhatTheDocumentSays) {
  const RunFolder run;
  std::string lines = run.train({"--json", "--set", "training.steps=4", "--progress", "always"}).out;
  lines += run.train({"--json", "--resume", "latest", "--set", "training.steps=6"}).out;
  std::map<std::string, std::set<std::string>> printed;
  for (const nlohmann::json& line : json_lines(lines)) {
    for (const auto& field : line.items()) printed[line["message_type"]].insert(field.key());
  }
  std::string text = get_file(FSDPCTL_SOURCE_DIR "/docs/json.md");
  text = text.substr(text.find("## train"));
  for (const char* type : {"resume", "step", "save"}) {
    ASSERT_FALSE(printed[type].empty()) << type;
    const size_t row = text.find(std::string("| `") + type + "` |");
    ASSERT_NE(row, text.npos) << type;
    const std::string said = text.substr(row, text.find('\n', row) - row);
    std::set<std::string> documented;
    int depth = 0;
    for (size_t i = 0; i < said.size(); ++i) {
      depth += said[i] == '(' ? 1 : said[i] == ')' ? -1 : 0;
      if (said[i] != '`') continue;
      const size_t end = said.find('`', i + 1);
      const std::string name = said.substr(i + 1, end - i - 1);
      if (depth == 0 && name != type && name.find('.') == name.npos) documented.insert(name);
      i = end;
    }
    if (std::string(type) == "step") documented.insert("step");   // a field, too
    documented.insert("message_type");
    EXPECT_EQ(printed[type], documented) << type;
  }
  printed["summary"].erase("schema_version");
  printed["summary"].erase("message_type");
  for (const std::string& field : printed["summary"]) EXPECT_NE(text.find("`" + field + "`"), text.npos) << field;
}

TEST(Train, OnlyTheNewestAreKept) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--set", "checkpoint.interval=1", "--set", "checkpoint.keep=2", "--set", "checkpoint.background=true"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(run.dir / "out/step-4"));
  EXPECT_EQ(run.newest_whole(), "step-6");
  EXPECT_TRUE(fs::exists(run.dir / "out/step-5"));
}

TEST(Save, WritesTheStateThatTrainingBeginsWith) {
  const RunFolder run;
  ASSERT_EQ(run.train({"--nproc", "2"}).exit_code, 0);
  const ProcessResult first = run.fsdpctl({"save", "c.json", "-o", "step-0", "--world-size", "2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const ProcessResult resumed = run.train({"--nproc", "2", "--resume", "step-0", "--set", "checkpoint.directory=again"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(run.same_state("again/step-6", "out/step-6"));
}

TEST(Save, WeightsAreEnoughToBeginWith) {
  const RunFolder run;
  ASSERT_EQ(run.fsdpctl({"save", "c.json", "-o", "first"}).exit_code, 0);
  ASSERT_EQ(run.fsdpctl({"convert", "first", "-o", "w.safetensors", "--to", "safetensors", "--part", "model"}).exit_code, 0);
  const ProcessResult saved = run.fsdpctl({"save", "w.safetensors", "-o", "step-0", "--world-size", "2"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const ProcessResult resumed = run.train({"--resume", "step-0"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  ASSERT_EQ(run.train({"--set", "checkpoint.directory=again"}).exit_code, 0);
  EXPECT_TRUE(run.same_state("again/step-6", "out/step-6"));
}

}  // namespace
}  // namespace fsdpctl
