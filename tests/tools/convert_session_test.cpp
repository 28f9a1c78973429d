// convert, reshard and diff, end to end, through the binary.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <set>

#include "tests/tools/session.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

TEST_F(Session, NothingToStripIsSaid) {
  const ProcessResult result = expect(0, {"convert", kSample, "--to", "torch", "-o", at("x.pt"), "--strip-wrappers"});
  EXPECT_THAT(result.err, testing::HasSubstr("--strip-wrappers found no wrapper"));
}

TEST_F(Session, ReshardKeepsTheContentForAnyWorldSize) {
  for (const std::string n : {"1", "3", "7", "16"}) {
    const std::string out = at("w" + n);
    const ProcessResult result = expect(0, {"reshard", kSample, "-o", out, "--world-size", n, "--json"});
    const nlohmann::json summary = only(result.out, "summary");
    EXPECT_EQ(summary["read_back"], true);
    EXPECT_EQ(summary["fingerprint"], summary["source_fingerprint"]);
    EXPECT_EQ(only(expect(0, {"inspect", "--json", out}).out, "checkpoint")["format"], "dcp");
    expect(0, {"diff", kSample, out});
    expect(0, {"verify", "--data", out});
  }
}

TEST_F(Session, ConvertGoesThereAndBack) {
  expect(0, {"convert", kSample, "-o", at("all.pt"), "--to", "torch"});
  expect(0, {"convert", at("all.pt"), "-o", at("back"), "--to", "dcp", "--world-size", "4"});
  const nlohmann::json same = only(expect(0, {"diff", "--json", "--data", kSample, at("back")}).out, "summary");
  EXPECT_EQ(same["same"], true);
  EXPECT_EQ(same["compared_tensors"], 28);
}

TEST_F(Session, ModelAloneGoesToOneSafetensorsFileOrADirectory) {
  expect(0, {"convert", kSample, "-o", at("model.safetensors"), "--to", "safetensors", "--part", "model"});
  EXPECT_TRUE(fs::is_regular_file(at("model.safetensors")));
  expect(0, {"convert", kSample, "-o", at("model"), "--to", "safetensors", "--part", "model"});
  EXPECT_TRUE(fs::is_directory(at("model")));
  expect(0, {"diff", at("model"), at("model.safetensors")});
}

TEST_F(Session, DiffSaysWhatAndWhere) {
  expect(0, {"convert", kSample, "-o", at("a.pt"), "--to", "torch"});
  expect(0, {"convert", kSample, "-o", at("b.pt"), "--to", "torch", "--drop", "anchor.weight", "--dtype", "bfloat16"});
  const ProcessResult result = expect(1, {"diff", "--json", at("a.pt"), at("b.pt")});
  bool missing = false, dtype = false;
  for (const nlohmann::json& object : json_lines(result.out)) {
    if (object["message_type"] != "difference") continue;
    missing = missing || (object["kind"] == "missing" && object["key"] == "model.anchor.weight");
    dtype = dtype || (object["kind"] == "dtype" && object["key"] == "model.core.tok.weight");
  }
  EXPECT_TRUE(missing);
  EXPECT_TRUE(dtype);
  const std::string text = expect(1, {"diff", at("a.pt"), at("b.pt")}).out;
  EXPECT_NE(text.find("different: "), std::string::npos);
  // A cast that changes no value, and one that the tolerance covers, differ in the dtype alone.
  EXPECT_NE(text.find("float32 [4] -> bfloat16 [4]: values are equal"), std::string::npos) << text;
  const std::string near = expect(1, {"diff", "--rtol", "0.01", at("a.pt"), at("b.pt")}).out;
  EXPECT_NE(near.find("bfloat16 [11, 6]: values are within the tolerance, max abs "), std::string::npos) << near;
}

TEST_F(Session, ContainersOfAnotherClassAreSaidAndNoDifference) {
  const std::string torch = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/containers.pt";
  expect(0, {"convert", torch, "-o", at("dcp"), "--to", "dcp"});
  for (const auto& [a, b] : {std::pair(torch, at("dcp")), std::pair(at("dcp"), torch)}) {
    const ProcessResult result = expect(0, {"diff", "--json", a, b});
    std::set<std::string> classes;
    for (const nlohmann::json& object : json_lines(result.out)) {
      EXPECT_NE(object["message_type"], "difference") << object;
      if (object["message_type"] != "container") continue;
      const bool forth = a == torch;
      classes.insert(fmt::format("{}: {} -> {}", object["key"].get<std::string>(),
                                 object[forth ? "a" : "b"].get<std::string>(),
                                 object[forth ? "b" : "a"].get<std::string>()));
    }
    EXPECT_THAT(classes, testing::IsSupersetOf({"counter: Counter -> dict", "ordered: OrderedDict -> dict",
                                                "dict: dict, some keys no strings -> dict"}));
  }
  const std::string text = expect(0, {"diff", torch, at("dcp")}).out;
  EXPECT_THAT(text, testing::HasSubstr(" of another class\n"));
  EXPECT_THAT(text, testing::HasSubstr("Counter -> dict"));
  EXPECT_THAT(expect(0, {"diff", torch, at("dcp"), "--name", "ordered*"}).out,
              testing::Not(testing::HasSubstr("Counter")));
}

TEST_F(Session, CastsAreSummedUpAndListedWhereAValueChanged) {
  const std::vector<std::string> arguments = {kSample, "-o", at("out.pt"), "--to", "torch", "--dtype", "bfloat16"};
  const auto with = [&](std::vector<std::string> more) {
    fs::remove_all(at("out.pt"));
    more.insert(more.end(), arguments.begin(), arguments.end());
    return expect(0, more).out;
  };
  const std::string dry = with({"convert", "--dry-run"});
  EXPECT_THAT(dry, testing::HasSubstr("cast        8 tensors in all, counted when they are written\n"));
  EXPECT_THAT(dry, testing::Not(testing::HasSubstr("->")));

  const std::string text = with({"convert"}), all = with({"-v", "convert"});
  EXPECT_THAT(text, testing::ContainsRegex(
                        "\n  cast        8 tensors in all, [0-9]+ values changed, 0 overflowed, 0 flushed to zero\n"));
  EXPECT_THAT(text, testing::HasSubstr("model.core.tok.weight: float32 -> bfloat16, "));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("no value changed")));
  EXPECT_THAT(all, testing::HasSubstr("float32 -> bfloat16, no value changed\n"));

  uint64_t changed = 0, casts = 0;
  for (const nlohmann::json& object : json_lines(with({"--json", "convert"}))) {
    if (object["message_type"] != "change" || object["kind"] != "cast") continue;
    ++casts;
    changed += object["changed"].get<uint64_t>();
    EXPECT_EQ(object["overflowed"], 0);
    EXPECT_EQ(object["flushed"], 0);
  }
  EXPECT_EQ(casts, 8u);
  EXPECT_THAT(text, testing::HasSubstr(fmt::format("8 tensors in all, {} values changed", changed)));
}

TEST_F(Session, ADamagedSourceLeavesNothingBehindAndSaysHowToSeeAllDamage) {
  expect(0, {"convert", kSample, "-o", at("source.pt"), "--to", "torch", "--part", "model"});
  fs::remove(at("source.pt.fsdpctl.json"));
  // A byte of some tensor: found when its archive member is read whole.
  const nlohmann::json piece = json_lines(expect(0, {"inspect", "--json", "--pieces", at("source.pt")}).out).at(1);
  flip_byte(at("source.pt"), piece["offset"].get<uint64_t>());
  for (const char* worker : {"", "1/2"}) {
    std::vector<std::string> arguments = {"convert", at("source.pt"), "-o", at("out.pt"), "--to", "torch"};
    if (*worker != 0) arguments.insert(arguments.end(), {"--worker", worker});
    const ProcessResult result = expect(3, arguments);
    EXPECT_THAT(result.err, testing::HasSubstr("  try:   fsdpctl verify --data " + at("source.pt") + "\n"));
    EXPECT_EQ(std::distance(fs::directory_iterator(work.path()), fs::directory_iterator()), 1) << worker;
  }
}

TEST_F(Session, EveryActOnTheContentIsListed) {
  const ProcessResult result = expect(0, {"convert", kSample, "-o", at("out"), "--to", "dcp", "--dtype", "bfloat16",
                                          "--drop", "temp", "--rename", "^core\\.=trunk.", "--json"});
  std::map<std::string, size_t> kinds;
  for (const nlohmann::json& object : json_lines(result.out)) {
    if (object["message_type"] == "change") ++kinds[object["kind"].get<std::string>()];
  }
  EXPECT_GT(kinds["cast"], 0u) << result.out;
  EXPECT_GT(kinds["dropped"], 0u);
  EXPECT_GT(kinds["renamed"], 0u);
  const std::string manifest = get_file(at("out/fsdpctl.manifest.json"));
  EXPECT_NE(manifest.find("trunk.tok.weight"), std::string::npos);
  EXPECT_EQ(manifest.find(at("out")), std::string::npos) << "an absolute path in the manifest";
}

TEST_F(Session, WhatTheTargetCannotHoldIsListedOnce) {
  const std::string source = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/dcp-objects-w2/ckpt";
  for (const bool dry : {true, false}) {
    std::vector<std::string> arguments = {"convert", "--json", source, "-o", at("objects.pt"), "--to", "torch"};
    if (dry) arguments.push_back("--dry-run");
    std::set<std::string> seen;
    for (const nlohmann::json& object : json_lines(expect(0, arguments).out)) {
      if (object["message_type"] != "finding") continue;
      EXPECT_TRUE(seen.insert(object.dump()).second) << object;
    }
    EXPECT_GT(seen.size(), 5u);
  }
}

TEST_F(Session, ARefusalOfManyTensorsShowsFewAndCountsThem) {
  const std::vector<std::string> arguments = {"convert", kSample, "-o", at("hf"), "--to", "hf-dcp"};
  const ProcessResult text = expect(4, arguments);
  size_t errors = 0;
  for (size_t p = text.err.find(": error: "); p != std::string::npos; p = text.err.find(": error: ", p + 1)) ++errors;
  EXPECT_LE(errors, 4u) << text.err;
  EXPECT_NE(text.err.find("more; --json lists all"), std::string::npos) << text.err;
  std::vector<std::string> machine = arguments;
  machine.push_back("--json");
  EXPECT_GT(json_lines(expect(4, machine).out).size(), 4u);
}

TEST_F(Session, ExistingOutputIsUntouchedUnlessForced) {
  expect(0, {"convert", kSample, "-o", at("out"), "--to", "dcp"});
  const std::string metadata = get_file(at("out/.metadata"));
  const ProcessResult refused = expect(2, {"convert", kSample, "-o", at("out"), "--to", "torch"});
  EXPECT_NE(refused.err.find("fsdpctl convert " + kSample + " -o " + at("out") + " --to torch --force"),
            std::string::npos)
      << refused.err;
  EXPECT_EQ(get_file(at("out/.metadata")), metadata);
  expect(0, {"convert", kSample, "-o", at("out"), "--to", "torch", "--force"});
  EXPECT_EQ(only(expect(0, {"inspect", "--json", at("out")}).out, "checkpoint")["format"], "torch");
}

TEST_F(Session, DryRunWritesNothing) {
  const ProcessResult result = expect(0, {"reshard", kSample, "-o", at("out"), "--world-size", "3", "--dry-run"});
  EXPECT_NE(result.out.find("nothing was written"), std::string::npos);
  const nlohmann::json summary =
      only(expect(0, {"reshard", "--json", kSample, "-o", at("out"), "--world-size", "3", "--dry-run"}).out, "summary");
  EXPECT_FALSE(summary.contains("fingerprint")) << summary;
  EXPECT_TRUE(fs::is_empty(work.path()));
}

TEST_F(Session, NoReadBackIsSaid) {
  EXPECT_NE(
      expect(0, {"reshard", kSample, "-o", at("out"), "--world-size", "3", "--no-read-back"}).out.find("not read back"),
      std::string::npos);
}

TEST_F(Session, ReshardingAFormatWithoutRanksNamesTheCommandThatDoesIt) {
  expect(0, {"convert", kSample, "-o", at("all.pt"), "--to", "torch"});
  const ProcessResult result = expect(4, {"reshard", at("all.pt"), "-o", at("out"), "--world-size", "3"});
  EXPECT_NE(result.err.find("fsdpctl convert " + at("all.pt") + " -o " + at("out") + " --to dcp --world-size 3"),
            std::string::npos)
      << result.err;
}

TEST_F(Session, TheSourceIsNeverChanged) {
  fs::copy(kSample, at("ckpt"), fs::copy_options::recursive);
  fs::permissions(at("ckpt"), fs::perms::owner_write, fs::perm_options::remove);
  for (const char* command : {"inspect", "verify"}) expect(0, {command, at("ckpt")});
  expect(0, {"convert", at("ckpt"), "-o", at("all.pt"), "--to", "torch"});
  fs::permissions(at("ckpt"), fs::perms::owner_write, fs::perm_options::add);
  for (const auto& entry : fs::directory_iterator(kSample)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(get_file(entry.path().string()), get_file(at("ckpt/" + name))) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(kSample), {}), std::distance(fs::directory_iterator(at("ckpt")), {}));
}

TEST_F(Session, TheDemoEndsWell) {
  const ProcessResult result =
      run_process({"bash", std::string(FSDPCTL_SOURCE_DIR) + "/scripts/demo.sh", FSDPCTL_BINARY});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

}  // namespace
}  // namespace fsdpctl
