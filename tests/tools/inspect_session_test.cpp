// inspect, end to end, through the binary.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/session.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

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

TEST_F(Session, ANameAloneListsTensors) {
  const std::string alone = expect(0, {"inspect", kSample, "--name", "*.exp_avg"}).out;
  EXPECT_EQ(alone, expect(0, {"inspect", kSample, "--tensors", "--name", "*.exp_avg"}).out);
  EXPECT_THAT(alone, testing::HasSubstr("exp_avg  "));
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

}  // namespace
}  // namespace fsdpctl
