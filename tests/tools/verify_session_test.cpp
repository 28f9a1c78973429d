// verify, its locks, seals and reports, end to end, through the binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/session.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

TEST_F(Session, AJunitReportTellsWhatFailedFromWhatCouldNotBeRun) {
  fs::copy(kSample, at("bad"), fs::copy_options::recursive);
  fs::resize_file(at("bad/__0_0.distcp"), 100);
  expect(0, {"convert", kSample, "-o", at("other.pt"), "--to", "torch", "--dtype", "float16"});
  expect(0, {"verify", kSample, "--write-lock", at("lock")});
  expect(3,
         {"verify", kSample, at("none"), at("bad"), at("other.pt"), "--against", at("lock"), "--junit", at("r.xml")});
  const std::string xml = get_file(at("r.xml"));
  EXPECT_THAT(xml, testing::HasSubstr("tests=\"4\" failures=\"2\" errors=\"1\""));
  EXPECT_THAT(xml, testing::HasSubstr("<error message=\"no such file or directory\">"));
  EXPECT_THAT(xml, testing::HasSubstr("<failure message=\"not compatible\">"));
  expect(6, {"verify", at("none"), "--junit", at("r.xml")});
  EXPECT_THAT(get_file(at("r.xml")), testing::HasSubstr("tests=\"1\" failures=\"0\" errors=\"1\""));
}

TEST_F(Session, VerifyNeverCallsOkWhatIsNotRecorded) {
  const ProcessResult quick = expect(0, {"verify", kSample});
  EXPECT_NE(quick.out.find("no damage found"), std::string::npos);
  EXPECT_NE(quick.out.find("not read (--data"), std::string::npos);
  const ProcessResult data = expect(0, {"verify", "--data", kSample});
  EXPECT_NE(data.out.find("manifest    not recorded"), std::string::npos) << data.out;
  EXPECT_EQ(data.out.find("verified"), std::string::npos);
}

TEST_F(Session, SealingFindsLaterDamageAndNamesTheTensor) {
  fs::copy(kSample, at("ckpt"), fs::copy_options::recursive);
  const std::string sealed = expect(0, {"verify", "--write-manifest", at("ckpt")}).out;
  EXPECT_NE(sealed.find("no damage found"), std::string::npos) << sealed;
  EXPECT_NE(sealed.find("sealed, 28 tensors"), std::string::npos) << sealed;
  EXPECT_TRUE(fs::exists(at("ckpt/fsdpctl.manifest.json")));
  EXPECT_NE(expect(0, {"verify", "--data", at("ckpt")}).out.find("28 of 28 tensors"), std::string::npos);
  EXPECT_NE(expect(2, {"verify", "--write-manifest", at("ckpt")}).err.find("manifest already"), std::string::npos);

  // Into the bytes of one tensor: found by offset from --pieces.
  std::string file;
  uint64_t offset = 0;
  for (const nlohmann::json& object :
       json_lines(expect(0, {"inspect", "--json", "--pieces", "--name", "model.core.tok.weight", at("ckpt")}).out)) {
    if (object["message_type"] == "piece" && object["rank"] == 2) {
      file = object["path"];
      offset = object["offset"].get<uint64_t>() + object["length"].get<uint64_t>() / 2;
    }
  }
  flip_byte(at("ckpt/" + file), offset);
  const ProcessResult text = expect(3, {"verify", "--data", at("ckpt")});
  EXPECT_NE(text.out.find("model.core.tok.weight"), std::string::npos) << text.out;
  const ProcessResult machine = expect(3, {"verify", "--data", "--json", "--junit", at("report.xml"), at("ckpt")});
  const nlohmann::json report = only(machine.out, "report");
  EXPECT_EQ(report["code"], 3);
  EXPECT_EQ(report["manifest_matches"], 27);
  EXPECT_GT(report["crc32_checked"], 50);  // one bad tensor does not hide what is known of the others
  EXPECT_NE(get_file(at("report.xml")).find("<failure message="), std::string::npos);
  EXPECT_NE(get_file(at("report.xml")).find("failures=\"1\""), std::string::npos);
}

// A file that is its own metadata: damage is not taken for another save.
TEST_F(Session, SealsOfSingleFilesFindDamageToo) {
  for (const std::string ending : {"safetensors", "h5", "pt"}) {
    SCOPED_TRACE(ending);
    const std::string file = at("all." + ending), to = ending == "h5" ? "hdf5" : ending == "pt" ? "torch" : ending;
    expect(0, {"convert", kSample, "-o", file, "--to", to});
    fs::copy(file, at("copy." + ending));
    fs::copy(file + ".fsdpctl.json", at("copy." + ending + ".fsdpctl.json"));
    uint64_t offset = 0;
    for (const nlohmann::json& object : json_lines(expect(0, {"inspect", "--json", "--pieces", "--name", "model.core.tok.weight", file}).out)) {
      if (object["message_type"] == "piece") offset = object["offset"].get<uint64_t>() + 5;
    }
    flip_byte(file, offset);
    EXPECT_NE(expect(3, {"verify", "--data", file}).out.find("checksum mismatch"), std::string::npos);
    expect(ending == "pt" ? 3 : 1, {"diff", file, at("copy." + ending)});
    // Sealing again needs to be meant.
    EXPECT_NE(expect(2, {"verify", "--write-manifest", file}).err.find("manifest already"), std::string::npos);
    if (ending == "pt") continue;   // its own checksums say that it is damaged
    expect(0, {"verify", "--write-manifest", "--force", file});
    expect(0, {"verify", "--data", file});
  }
}

TEST_F(Session, ACutManifestIsDamage) {
  fs::copy(kSample, at("ckpt"), fs::copy_options::recursive);
  expect(0, {"verify", "--write-manifest", at("ckpt")});
  fs::resize_file(at("ckpt/fsdpctl.manifest.json"), 100);
  EXPECT_NE(expect(3, {"verify", at("ckpt")}).out.find("manifest cannot be read"), std::string::npos);
  expect(0, {"inspect", at("ckpt")});
}

TEST_F(Session, LocksSayWhatIsCompatible) {
  expect(0, {"verify", kSample, "--write-lock", at("model.lock")});
  EXPECT_NE(expect(2, {"verify", kSample, "--write-lock", at("model.lock")}).err.find("output exists"),
            std::string::npos);
  expect(0, {"verify", kSample, "--write-lock", at("model.lock"), "--force"});
  EXPECT_NE(expect(0, {"verify", kSample, "--against", at("model.lock")}).out.find("compatible"), std::string::npos);
  expect(0, {"convert", kSample, "-o", at("cast.pt"), "--to", "torch", "--dtype", "float16"});
  const ProcessResult other = expect(1, {"verify", at("cast.pt"), "--against", at("model.lock")});
  EXPECT_NE(other.out.find("not compatible"), std::string::npos);
  EXPECT_NE(other.out.find("bfloat16"), std::string::npos) << other.out;
  expect(0, {"convert", kSample, "-o", at("part.pt"), "--to", "torch", "--drop", "temp"});
  EXPECT_NE(
      expect(1, {"verify", at("part.pt"), "--against", at("model.lock")}).out.find("float32 [], expected and not here"),
      std::string::npos);
  expect(1, {"verify", at("cast.pt"), "--against", kSample});
}

TEST_F(Session, WhatIsFoundWrongIsAnAnswerAndNoError) {
  fs::copy(kSample, at("ckpt"), fs::copy_options::recursive);
  fs::resize_file(at("ckpt/__0_0.distcp"), 100);
  for (const char* command : {"verify", "inspect"}) {
    const ProcessResult damaged = expect(3, {command, "--json", at("ckpt")});
    EXPECT_EQ(damaged.err, "");
    EXPECT_EQ(json_lines(damaged.out).back()["message_type"], "summary");
    const ProcessResult absent = expect(6, {command, "--json", at("none")});
    EXPECT_EQ(absent.out, "");
    EXPECT_EQ(json_lines(absent.err).back()["message_type"], "error");
  }
}

TEST_F(Session, OneOfAThingIsNotCountedAsMany) {
  const std::string one = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/bare_tensor.pt";
  const std::string quiet = expect(0, {"-q", "convert", one, "-o", at("b"), "--to", "torch"}).out;
  EXPECT_NE(quiet.find("1 file,"), std::string::npos) << quiet;  // -q keeps the answer
  EXPECT_NE(expect(0, {"diff", one, at("b")}).out.find("same: 1 tensor and 0 other values"), std::string::npos);
  EXPECT_NE(expect(0, {"reshard", kSample, "-o", at("w1"), "--world-size", "1"}).out.find("dcp of 1 rank,"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdpctl
