// The commands end to end, through the binary, on the sample that the repository ships and on tests/data.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

const std::string kSample = std::string(FSDPCTL_SOURCE_DIR) + "/samples/dcp-fsdp2-w4";

// Expects the exit code; everything that was printed is in the failure's message.
ProcessResult expect(int code, const std::vector<std::string>& arguments, const ProcessOptions& options = {}) {
  const ProcessResult result = run_fsdpctl(arguments, options);
  std::string line;
  for (const std::string& argument : arguments) line += " " + argument;
  EXPECT_EQ(result.exit_code, code) << "fsdpctl" << line << "\n" << result.out << result.err;
  return result;
}

nlohmann::json only(const std::string& text, const std::string& message_type) {
  std::vector<nlohmann::json> found;
  for (nlohmann::json& object : json_lines(text)) {
    if (object["message_type"] == message_type) found.push_back(std::move(object));
  }
  if (found.size() != 1) throw std::runtime_error(message_type + ": " + std::to_string(found.size()) + " of them");
  return found[0];
}

void flip_byte(const std::string& path, uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char old = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(old ^ 0x40));
}

class Session : public testing::Test {
 protected:
  TempDir work;
  std::string at(const std::string& name) const { return work / name; }
};

// ---- inspect

TEST_F(Session, InspectSaysWhatItIsInTheFirstLine) {
  const ProcessResult result = expect(0, {"inspect", kSample});
  const std::string first = result.out.substr(0, result.out.find('\n'));
  EXPECT_EQ(first, kSample + ": dcp checkpoint of 4 ranks, 28 tensors, 1.8 KiB, whole by its metadata");
  for (const char* fact :
       {"Shard(0) 17", "AdamW", "2 groups", "step 2", "scale 1024", "last_epoch 2", "not recorded"}) {
    EXPECT_NE(result.out.find(fact), std::string::npos) << fact << "\n" << result.out;
  }
  EXPECT_EQ(result.err, "");
}

TEST_F(Session, InspectJsonHasTheContract) {
  const ProcessResult result =
      expect(0, {"inspect", "--json", "--tensors", "--sha256", "--fingerprint", "--extra", "--groups", kSample});
  const nlohmann::json checkpoint = only(result.out, "checkpoint");
  EXPECT_EQ(checkpoint["format"], "dcp");
  EXPECT_EQ(checkpoint["whole"], true);
  EXPECT_EQ(checkpoint["world_size"], 4);
  EXPECT_EQ(checkpoint["parts"]["model"]["tensors"], 10);
  EXPECT_EQ(checkpoint["optimizers"][0]["step"]["highest"], 2.0);
  size_t tensors = 0, values = 0, groups = 0;
  for (const nlohmann::json& object : json_lines(result.out)) {
    values += object["message_type"] == "value" ? 1 : 0;
    groups += object["message_type"] == "group" ? 1 : 0;
    if (object["message_type"] != "tensor") continue;
    ++tensors;
    EXPECT_EQ(object["crc64"].get<std::string>().size(), 16u);
    EXPECT_EQ(object["sha256"].get<std::string>().size(), 64u);
    if (object["key"] == "optim.state.lowp.weight.exp_avg") {
      EXPECT_EQ(object["part"], "optimizer");
      EXPECT_EQ(object["fqn"], "lowp.weight");
      EXPECT_EQ(object["field"], "exp_avg");
      EXPECT_EQ(object["dtype"], "bfloat16");
      EXPECT_EQ(object["shape"], nlohmann::json({5, 3}));
    }
  }
  EXPECT_EQ(tensors, 28u);
  EXPECT_EQ(groups, 2u);
  EXPECT_GT(values, 30u);
  EXPECT_EQ(json_lines(result.out).back()["message_type"], "summary");
  EXPECT_EQ(json_lines(result.out).back()["schema_version"], 1);
}

TEST_F(Session, InspectNameChoosesByKeyAndByFqn) {
  const auto count = [&](const std::string& glob) {
    size_t n = 0;
    for (const nlohmann::json& object :
         json_lines(expect(0, {"inspect", "--json", "--tensors", "--name", glob, kSample}).out)) {
      n += object["message_type"] == "tensor" ? 1 : 0;
    }
    return n;
  };
  EXPECT_EQ(count("model.lowp.weight"), 1u);
  EXPECT_EQ(count("lowp.weight"), 4u);  // the FQN: parameter, two moments, step
  EXPECT_EQ(count("*.exp_avg"), 6u);
  EXPECT_EQ(count("nothing"), 0u);
}

TEST_F(Session, ATableOfNothingSaysSo) {
  for (const char* table : {"--tensors", "--pieces", "--extra", "--sha256", "--fingerprint"}) {
    const ProcessResult result = expect(0, {"inspect", kSample, table, "--name", "no.such"});
    EXPECT_THAT(result.out, testing::ContainsRegex("\nno .* match --name no\\.such\n$")) << table;
  }
  EXPECT_THAT(expect(0, {"inspect", kSample, "--name", "no.such"}).err, testing::HasSubstr("nothing matches --name"));
  const std::string one = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/bare_tensor.pt";
  EXPECT_THAT(expect(0, {"inspect", one, "--extra"}).out, testing::EndsWith("\nno values\n"));
}

TEST_F(Session, WhatLiesAtTheRootHasAName) {
  const std::string odd = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/";
  EXPECT_THAT(expect(0, {"inspect", odd + "bare_int.pt", "--extra"}).out,
              testing::AllOf(testing::HasSubstr("  counters    (root) 5\n"), testing::EndsWith("\n(root)  5\n")));
  EXPECT_THAT(expect(0, {"inspect", odd + "bare_tensor.pt", "--tensors"}).out,
              testing::HasSubstr("\n(root)  float32  "));
  EXPECT_THAT(expect(1, {"diff", odd + "bare_int.pt", odd + "bare_tensor.pt"}).out, testing::HasSubstr("(root)"));
}

TEST_F(Session, ExtraValuesAreForPeopleOneShortLineEach) {
  const std::string torch = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/containers.pt";
  const std::string text = expect(0, {"inspect", torch, "--extra"}).out;
  for (const char* line :
       {"\nbytes          bytes[256]\n", "\ncounter        Counter{\"h\": 1, \"e\": 1, \"l\": 2, \"o\": 1}\n",
        "\nset            set(1, 2, 3)\n", "\nnone           None\n", "\nbools          [True, False]\n",
        "\ncomplex        (1.5-2.5j)\n", "\nbytearray      bytearray[3] 616263\n", "\nempty.1        ()\n"}) {
    EXPECT_THAT(text, testing::HasSubstr(line));
  }
  const std::string rng = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/plain/checkpoint.pt";
  EXPECT_THAT(expect(0, {"inspect", rng, "--extra"}).out, testing::ContainsRegex("tensor uint8 \\[[0-9]+\\]\n"));
  const size_t table = text.find("\nvalue ");
  ASSERT_NE(table, std::string::npos);
  EXPECT_EQ(text.find("{\"", table), text.find("{\"h\"", table)) << "a tag of JSON";
  for (size_t begin = table + 1; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_LT(end - begin, 220u) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST_F(Session, FilesOfATrainerThatLieBesideAreNamed) {
  const std::string model = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/params.pt";
  expect(0, {"convert", model, "-o", at("model.safetensors"), "--to", "safetensors"});
  for (const char* weights : {"pytorch_model.bin", "model.safetensors"}) {
    const std::string directory = at(std::string("trainer-of-") + weights);
    fs::create_directory(directory);
    fs::copy(std::string(weights) == "pytorch_model.bin" ? model : at("model.safetensors"), directory + "/" + weights);
    for (const char* name : {"optimizer.pt", "scheduler.pt", "rng_state.pth"}) fs::copy(model, directory + "/" + name);
    std::ofstream(directory + "/trainer_state.json") << "{}";
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"inspect", directory}, {"convert", directory, "-o", at("out.pt"), "--to", "torch", "--dry-run"}}) {
      const ProcessResult result = expect(0, arguments);
      EXPECT_THAT(result.out + result.err,
                  testing::AllOf(testing::HasSubstr("are not read"),
                                 testing::HasSubstr("optimizer.pt, rng_state.pth, scheduler.pt\n"),
                                 testing::HasSubstr("try:   fsdpctl inspect " + directory + "/optimizer.pt\n")));
    }
  }
  fs::create_directory(at("only"));
  fs::copy(model, at("only/x.pt"));
  EXPECT_THAT(expect(4, {"inspect", at("only")}).err,
              testing::HasSubstr("try:   fsdpctl inspect " + at("only/x.pt") + "\n"));
}

TEST_F(Session, SeveralSafetensorsFilesAreNamedOnceEach) {
  const std::string model = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/params.pt";
  fs::create_directory(at("d"));
  expect(0, {"convert", model, "-o", at("d/a.safetensors"), "--to", "safetensors"});
  fs::copy(at("d/a.safetensors"), at("d/b.safetensors"));
  EXPECT_THAT(expect(4, {"inspect", at("d")}).err,
              testing::AllOf(testing::HasSubstr("found a.safetensors, b.safetensors\n"),
                             testing::HasSubstr("try:   fsdpctl inspect " + at("d/a.safetensors"))));
}

TEST_F(Session, AWholePickledModelSaysHowToSaveIt) {
  const std::string whole = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/whole_module.pt";
  EXPECT_THAT(expect(5, {"inspect", whole}).err, testing::HasSubstr("torch.save(model.state_dict(), PATH)"));
}

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

TEST_F(Session, SeveralCheckpointsAreAllTriedAndTheFirstFailureIsTheExitCode) {
  const ProcessResult result = expect(6, {"inspect", at("none"), kSample, at("nothing")});
  EXPECT_NE(result.out.find("dcp checkpoint"), std::string::npos);
  EXPECT_NE(result.err.find("none"), std::string::npos);
  EXPECT_NE(result.err.find("nothing"), std::string::npos);
  const ProcessResult machine = expect(6, {"verify", "--json", at("none"), kSample});
  EXPECT_EQ(only(machine.out, "summary")["failed"], 1);
}

TEST_F(Session, ABrokenPipeIsAQuietSuccess) {
  const std::string command =
      std::string(FSDPCTL_BINARY) + " inspect --json --tensors --pieces --extra '" + kSample + "'";
  const ProcessResult result = run_process({"bash", "-c", "set -o pipefail; " + command + " | true"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST_F(Session, ClosedStandardStreamsAreNeverWrittenIntoFiles) {
  // A file that is opened while descriptor 0, 1 or 2 is free would get that number, and our words with it.
  const auto convert = [&](const std::string& input, const std::string& output, const std::string& more) {
    return run_process(
               {"bash", "-c",
                std::string(FSDPCTL_BINARY) + " convert '" + input + "' -o '" + at(output) + "' --to torch " + more})
        .exit_code;
  };
  EXPECT_EQ(convert(kSample, "all.pt", ""), 0);
  EXPECT_EQ(convert(at("all.pt"), "quiet.pt", "<&- 2>&-"), 0);  // nothing to say there
  // The first files are the source, now at 0, and the lock of the output, now at 2.
  EXPECT_EQ(convert(at("all.pt"), "progress.pt", "--progress always <&- 2>&-"), 6);
  EXPECT_FALSE(fs::exists(at("progress.pt")));
  EXPECT_EQ(convert(at("all.pt"), "silent.pt", "<&- >&-"), 6);  // written, but it could not be said
  expect(0, {"diff", "--data", kSample, at("quiet.pt")});
  expect(0, {"diff", "--data", kSample, at("silent.pt")});
}

TEST_F(Session, VerboseSaysWhatWasOpenedAndHowLongItTook) {
  const std::vector<std::string> convert = {"convert", kSample, "--to", "torch", "-o"};
  const auto run = [&](const std::string& flag) {
    std::vector<std::string> arguments = convert;
    arguments.insert(arguments.end(), {at("out" + flag), flag});
    return expect(0, arguments).err;
  };
  const std::string verbose = run("-v"), more = run("-vv");
  EXPECT_NE(verbose.find("dcp, directory with .metadata; 28 tensors"), std::string::npos) << verbose;
  EXPECT_NE(verbose.find("fsdpctl: convert: "), std::string::npos) << verbose;
  EXPECT_EQ(verbose.find("of buffers"), std::string::npos) << verbose;
  EXPECT_NE(more.find("96.0 MiB of buffers"), std::string::npos) << more;
  EXPECT_EQ(run("-q"), "");
}

TEST_F(Session, AFullDiskUnderStdoutIsAnError) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const ProcessResult result =
      run_process({"bash", "-c", std::string(FSDPCTL_BINARY) + " inspect '" + kSample + "' > /dev/full"});
  EXPECT_EQ(result.exit_code, 6);
  EXPECT_NE(result.err.find("output could not be written"), std::string::npos);
}

TEST_F(Session, ATemporaryDirectoryThatIsNotThereIsSaid) {
  // Encoded items are decoded into a temporary file.
  const std::string zstd = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/dcp-zstd-w2/ckpt";
  const ProcessResult result = expect(6, {"verify", "--data", zstd}, {{"TMPDIR=" + at("none")}, ""});
  EXPECT_NE((result.out + result.err).find("error: cannot create temporary file"), std::string::npos)
      << result.out << result.err;
}

TEST_F(Session, ARunDirectoryStandsForItsNewestCompleteStepAndSaysSo) {
  fs::copy(kSample, at("step-1"), fs::copy_options::recursive);
  fs::copy(kSample, at("step-2"), fs::copy_options::recursive);
  fs::remove(at("step-2/.metadata"));
  const ProcessResult inspect = expect(0, {"inspect", work.path()});
  EXPECT_NE(inspect.out.find("chosen      step-1"), std::string::npos) << inspect.out;
  for (const std::string& said :
       {inspect.out, expect(0, {"verify", work.path()}).out,
        expect(0, {"convert", work.path(), "-o", work.path() + ".pt", "--to", "torch", "--dry-run"}).err}) {
    EXPECT_NE(said.find("warning: newer step is not complete and was passed over"), std::string::npos) << said;
    EXPECT_NE(said.find("step-2"), std::string::npos) << said;
  }
}

TEST_F(Session, InspectShowsValuesThatAreNoDicts) {
  const std::string odd = std::string(FSDPCTL_SOURCE_DIR) + "/tests/data/2.13.0/odd-torch/";
  const ProcessResult tensor = expect(0, {"inspect", "--tensors", "--extra", odd + "bare_tensor.pt"});
  EXPECT_NE(tensor.out.find("1 tensor, "), std::string::npos) << tensor.out;
  const ProcessResult number = expect(0, {"inspect", "--extra", odd + "bare_int.pt"});
  EXPECT_NE(number.out.find("counters    (root) 5\n"), std::string::npos) << number.out;
}

TEST_F(Session, InspectsFirstLineTellsUnsafeFromDamaged) {
  if (shared_fixtures().empty()) GTEST_SKIP() << kNoSharedFixtures;
  const std::string damaged = shared_fixtures() + "/damaged/";
  const auto first = [&](int code, const std::string& name) {
    const std::string out = expect(code, {"inspect", damaged + name}).out;
    return out.substr(0, out.find('\n'));
  };
  EXPECT_THAT(first(5, "dcp-item-os-system/ckpt"), testing::EndsWith("unsafe or not supported: 1 problem"));
  EXPECT_THAT(first(3, "dcp-chunk-hole/ckpt"), testing::EndsWith("damaged or incomplete: 1 problem"));
}

TEST_F(Session, ANameThatMatchesNothingIsSaid) {
  EXPECT_NE(expect(0, {"inspect", kSample, "--tensors", "--name", "nothing"}).err.find("nothing matches --name"),
            std::string::npos);
  EXPECT_NE(expect(4, {"diff", kSample, kSample, "--name", "nothing"}).err.find("nothing matches --name"),
            std::string::npos);
}

// ---- verify

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

// ---- reshard, convert, diff

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
