// The format hf-dcp: what PyTorch's HuggingFaceStorageWriter wrote, and what its reader reads.
#include "formats/hf_dcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "lib/ckpt/tiling.h"
#include "lib/ckpt/untie.h"
#include "tests/support/error_of.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/process.h"
#include "tests/support/slow_reference.h"
#include "tests/support/slow_tensors.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Checkpoint open_path(const std::string& path, FindingSink& sink) { return hf_dcp_format()->open(Source::open(path), sink); }
Checkpoint open_path(const std::string& path) {
  FindingSink sink;
  return open_path(path, sink);
}

std::string shard(int number) { return "shard-0000" + std::to_string(number) + "-model-00001-of-00001.safetensors"; }

const std::string kFixture = test_data("2.13.0/hf-dcp-w3");

TEST(HfDcp, ReadsWhatPyTorchReads) {
  std::vector<std::string> roots = {kFixture};
  for (const char* version : {"2.9.1", "2.13.0"}) {
    const std::string root = shared_fixtures() + "/" + version + "/hf-dcp-w3";
    if (fs::exists(root)) roots.push_back(root);
  }
  for (const std::string& root : roots) {
    const json expected = json::parse(get_file(root + "/expected.json"));
    for (const char* name : {"sharded", "sharded_one"}) {
      SCOPED_TRACE(root + "/" + name);
      FindingSink sink;
      const Checkpoint c = open_path(root + "/" + name, sink);
      EXPECT_EQ(slow_tensors(c), expected.at("stored").at(name).at("tensors"));
      EXPECT_EQ(c.world_size, 3);
      EXPECT_TRUE(c.world_size_inferred);
      EXPECT_TRUE(sink.all().empty());
      check_tiling(c, sink);
    }
    // The pieces that were consolidated later: this part holds all but the 0-d tensors.
    EXPECT_EQ(slow_tensors(open_path(root + "/consolidated/sharded")), expected.at("stored").at("consolidated").at("tensors"));
  }
}

TEST(HfDcp, PiecesKnowTheirRanks) {
  const Checkpoint c = open_path(kFixture + "/sharded_one");
  const std::span<const Piece> pieces = c.pieces_of(*c.find("core.tok.weight"));
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(box_text(pieces[2].box), "[8, 11) x [0, 6)");
  EXPECT_EQ(pieces[2].rank, 2);
  EXPECT_EQ(c.pieces_of(*c.find("seen"))[0].rank, 1);
}

TEST(HfDcp, OnlyDirectoriesOfShardsAreRecognised) {
  const auto format = hf_dcp_format();
  EXPECT_TRUE(format->recognize(*Source::open(kFixture + "/sharded")));
  EXPECT_FALSE(format->recognize(*Source::open(kFixture + "/full_rank0")));
  EXPECT_FALSE(format->recognize(*Source::open(kFixture + "/consolidated")));
  EXPECT_FALSE(safetensors_format()->recognize(*Source::open(kFixture + "/sharded")));
  const std::string file = kFixture + "/sharded_one/" + shard(1);
  EXPECT_TRUE(format->recognize(*Source::open(file)));
  EXPECT_EQ(error_of([&] { open_path(file); }).code, Exit::refused);
}

// ----------------------------------------------------------------------------------------------------------- damage

// A copy of the fixture with one file per rank, to damage.
class HfDcpDamage : public testing::Test {
 protected:
  HfDcpDamage() { fs::copy(kFixture + "/sharded_one", path_); }

  void edit(int number, const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    const std::string file = path_ + "/" + shard(number);
    std::string text = get_file(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(file, std::ios::binary) << text.replace(at, from.size(), to);
  }
  Finding damage() { return error_of([&] { open_path(path_); }); }
  Finding tiling_damage() {
    FindingSink sink;
    const Checkpoint c = open_path(path_, sink);
    return error_of([&] { check_tiling(c, sink); });
  }

  TempDir dir_;
  std::string path_ = dir_ / "model";
};

TEST_F(HfDcpDamage, MissingRankInBetweenIsAWarningAndAHole) {
  fs::remove(path_ + "/" + shard(2));
  FindingSink sink;
  open_path(path_, sink);
  ASSERT_EQ(sink.all().size(), 1u);
  EXPECT_EQ(sink.all()[0].where.path, shard(2));
  EXPECT_EQ(tiling_damage().code, Exit::damaged);
}

TEST_F(HfDcpDamage, OffsetsThatOverlapOrLeaveHoles) {
  edit(2, R"(\"core.tok.weight\": {\"saved_offsets\": [4, 0])", R"(\"core.tok.weight\": {\"saved_offsets\": [3, 0])");
  EXPECT_EQ(tiling_damage().where.key, "core.tok.weight");
}

TEST_F(HfDcpDamage, OffsetsWithTooFewNumbers) {
  edit(2, R"(\"core.tok.weight\": {\"saved_offsets\": [4, 0])", R"(\"core.tok.weight\": {\"saved_offsets\": [   4])");
  EXPECT_EQ(damage().where.key, "core.tok.weight");
}

TEST_F(HfDcpDamage, OffsetsThatOverflow) {
  edit(2, R"(\"core.tok.weight\": {\"saved_offsets\": [4, 0]}, \"core.norm.weight\": {\"saved_offsets\": [1]})",
       R"(\"core.tok.weight\": {\"saved_offsets\": [9223372036854775807,0]},\"x\": {\"saved_offsets\": []})");
  EXPECT_EQ(damage().code, Exit::damaged);   // of core.norm.weight, whose entry made room for the digits, or of this one
}

TEST_F(HfDcpDamage, OffsetsThatAreMissing) {
  edit(2, R"(\"core.tok.weight\": {)", R"(\"core.toc.weight\": {)");
  EXPECT_EQ(damage().where.key, "core.tok.weight");
  edit(3, "DCP_SHARDING_INFO", "DCP_SHARDING_info");
  FindingSink sink(false);
  open_path(path_, sink);
  EXPECT_EQ(sink.all().size(), 8u);   // one more for each of the seven tensors of rank 2
}

TEST_F(HfDcpDamage, OffsetsThatAreNoJson) {
  edit(2, R"({\"saved_offsets\": [4, 0]})", R"([\"saved_offsets\": [4, 0]})");
  const Finding f = damage();
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.path, shard(2));
}

TEST_F(HfDcpDamage, PiecesThatDisagree) {
  edit(2, R"("core.norm.weight":{"dtype":"F32")", R"("core.norm.weight":{"dtype":"I32")");
  EXPECT_EQ(damage().where.key, "core.norm.weight");
}

TEST_F(HfDcpDamage, FilesOfTwoSaves) {
  fs::copy(kFixture + "/sharded/shard-00003-model-00002-of-00002.safetensors", path_);
  EXPECT_EQ(damage().what, "files of different saves are mixed");
}

TEST_F(HfDcpDamage, AllFilesAreExaminedWhenOneIsBroken) {
  fs::resize_file(path_ + "/" + shard(1), 20);
  FindingSink sink(false);
  const Checkpoint c = open_path(path_, sink);
  EXPECT_EQ(sink.all().size(), 1u);
  EXPECT_TRUE(c.find("core.tok.weight"));
}

// ---------------------------------------------------------------------------------------------------------- writing

// Shard(0) for tensors with dimensions, one copy on rank t % world size for the others.
TargetPlacement shard_all(const Checkpoint& checkpoint, int64_t world_size) {
  std::vector<TargetPlacement::Row> rows(checkpoint.tensors.size());
  for (size_t t = 0; t < rows.size(); ++t) {
    if (checkpoint.tensors[t].shape.empty()) rows[t].holder = static_cast<int32_t>(static_cast<int64_t>(t) % world_size);
    else rows[t].dim = 0;
  }
  return {world_size, rows};
}

void write(const Checkpoint& checkpoint, const std::string& directory, int64_t world_size) {
  const TargetPlacement placement = shard_all(checkpoint, world_size);
  Target target;
  target.placement = &placement;
  target.directory = true;
  FindingSink sink;
  const auto format = hf_dcp_format();
  format->can_carry(checkpoint, target, sink);
  slow_write(checkpoint, format->lay_out(checkpoint, target), directory);
}

json real_read(const std::string& directory) {
  const ProcessResult r = run_process({torch_python(), std::string(FSDPCTL_SOURCE_DIR) + "/tests/support/describe_tensors.py", "hf-dcp", directory});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return r.exit_code == 0 ? json::parse(r.out).at("tensors") : json();
}

TEST(HfDcpWriting, EveryWorldSizeReadsBack) {
  const Checkpoint source = open_path(kFixture + "/sharded_one");
  for (const int64_t world_size : {1, 2, 3, 5, 13}) {
    TempDir dir;
    write(source, dir.path(), world_size);
    FindingSink sink;
    const Checkpoint back = open_path(dir.path(), sink);
    EXPECT_EQ(slow_tensors(back), slow_tensors(source)) << world_size;
    EXPECT_EQ(back.world_size, world_size);
    EXPECT_FALSE(back.world_size_inferred);
    check_tiling(back, sink);
    EXPECT_TRUE(sink.all().empty());
    if (!torch_python().empty() && (world_size == 1 || world_size == 5)) {
      EXPECT_EQ(real_read(dir.path()), slow_tensors(source)) << world_size;
    }
  }
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
}

TEST(HfDcpWriting, FileOfALastRankIsMissed) {
  TempDir dir;
  write(open_path(kFixture + "/sharded_one"), dir.path(), 5);
  fs::remove(dir / shard(5));
  const Finding f = error_of([&] { open_path(dir.path()); });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.path, shard(5));
}

TEST(HfDcpWriting, NestedModelsComeBackAndFilesHavePlainNames) {
  TempDir dir;
  Checkpoint c = open_path(kFixture + "/sharded_one");
  c.tree = dict({{"model", c.tree}});
  FindingSink sink;
  c.finish(sink);
  write(c, dir.path(), 2);
  EXPECT_EQ(slow_tensors(open_path(dir.path())), slow_tensors(c));   // keys begin with "model."
  EXPECT_THAT(get_file(dir / shard(2)), testing::HasSubstr("\"core.tok.weight\":{"));
}

// PyTorch's reader knows no tied tensors: it must find every name.
TEST(HfDcpWriting, TiedTensorsHaveAllTheirNames) {
  EXPECT_FALSE(hf_dcp_format()->capabilities().ties);
  FindingSink sink;
  const Checkpoint tied = safetensors_format()->open(Source::open(test_data("2.13.0/hf-safetensors/tied")), sink);
  ASSERT_EQ(tied.aliases.size(), 1u);
  json expected = slow_tensors(tied);
  expected["core.tok.weight"] = expected.at("core.head.weight");
  std::vector<Change> changes;
  TempDir dir;
  write(untied(tied, changes), dir.path(), 3);
  const Checkpoint back = open_path(dir.path(), sink);
  EXPECT_EQ(slow_tensors(back), expected);
  EXPECT_TRUE(back.aliases.empty());
  EXPECT_TRUE(sink.all().empty());
  if (torch_python().empty()) GTEST_SKIP() << kNoTorch;
  EXPECT_EQ(real_read(dir.path()), expected);
}

TEST(HfDcpWriting, OnlyTheModelCanBeCarried) {
  MadeCheckpoint made;
  const Value state = dict({{"w", dict({{"exp_avg", made.tensor("optim.state.w.exp_avg", {2})}})}});
  made.checkpoint.tree = dict({{"model", dict({{"w", made.tensor("model.w", {2})}})},
                               {"optim", dict({{"state", state}, {"param_groups", list({dict({{"params", names({"w"})}})})}})},
                               {"epoch", Value::integer(1)}});
  FindingSink sink(false);
  hf_dcp_format()->can_carry(made.checkpoint, Target{}, sink);
  std::vector<std::string> keys;
  for (const Finding& f : sink.all()) {
    EXPECT_EQ(f.code, Exit::refused);
    EXPECT_EQ(f.hint, "--part model");
    keys.push_back(f.where.key);
  }
  EXPECT_THAT(keys, testing::IsSupersetOf({"optim.state.w.exp_avg", "epoch"}));
  EXPECT_THAT(keys, testing::Not(testing::Contains("model.w")));
}

}  // namespace
}  // namespace fsdpctl
