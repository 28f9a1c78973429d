// The config of training: what is read, what is printed, and what is refused with which words.
#include "lib/train/config/train_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::train {
namespace {

using testing::HasSubstr;

constexpr const char* kSmall = R"({
  // the least that a config says
  "model": {"config": {"model_type": "mlp"}},
  "data": {"files": ["a.txt"]},
  "training": {"steps": 10}
})";

TrainConfig with(const std::vector<std::string>& assignments) { return parse_train_config(kSmall, "run/c.json", assignments); }

Error refused(const std::string& text, const std::vector<std::string>& assignments = {}) {
  try {
    parse_train_config(text, "c.json", assignments);
  } catch (const Error& e) {
    return e;
  }
  return {Exit::ok, "nothing was refused"};
}

TEST(TrainConfig, WhatIsNotSaidHasADefault) {
  const TrainConfig config = with({});
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::adamw);
  EXPECT_EQ(config.max_norm, 1);
  EXPECT_EQ(config.param_dtype, DType::bfloat16);
  EXPECT_EQ(config.schedule.total_steps, 10u);   // the run's
  EXPECT_EQ(config.training.max_consecutive_skips, 20u);
  EXPECT_EQ(config.model.config["model_type"], "mlp");
}

TEST(TrainConfig, AssignmentsGoOverTheFile) {
  const TrainConfig config = with({"optimizer.lr=1e-4", "training.steps=1e3", "data.kind=tokens", "data.dtype=uint16", "sharding.wrap=[]",
                                   "model.config.hidden_size=8", "optimizer.betas=[0.8, 0.9]", "checkpoint.directory=out"});
  EXPECT_EQ(config.optimizer.defaults.lr, 1e-4);
  EXPECT_EQ(config.training.steps, 1000u);
  EXPECT_EQ(config.data.kind, DataKind::tokens);
  EXPECT_EQ(config.data.dtype, DType::uint16);
  EXPECT_EQ(config.sharding.wrap, std::vector<std::string>());
  EXPECT_EQ(config.model.config["hidden_size"], 8);
  EXPECT_EQ(config.optimizer.defaults.beta1, 0.8);
  EXPECT_EQ(config.optimizer.defaults.beta2, 0.9);
  EXPECT_EQ(config.checkpoint.directory, "out");
}

TEST(TrainConfig, GroupsHaveTheirOwnKeys) {
  const TrainConfig config = with({R"(optimizer.groups=[{"match": "*.bias", "weight_decay": 0, "lr": 0.5}, {"match": "head.*"}])"});
  ASSERT_EQ(config.optimizer.rules.size(), 2u);
  EXPECT_EQ(config.optimizer.rules[0].match, "*.bias");
  EXPECT_EQ(config.optimizer.rules[0].weight_decay, 0.0);
  EXPECT_EQ(config.optimizer.rules[0].lr, 0.5);
  EXPECT_EQ(config.optimizer.rules[0].beta1, std::nullopt);
  EXPECT_EQ(config.optimizer.rules[1].match, "head.*");
}

TEST(TrainConfig, WhatIsPrintedIsAConfigThatSaysTheSame) {
  const TrainConfig config = with({"optimizer.lr=1e-4", R"(optimizer.groups=[{"match": "*", "eps": 1e-6}])", "precision.param_dtype=float16",
                                   "loss_scale.initial_scale=4", "sharding.wrap=[\"MlpLayer\"]"});
  const std::string text = explained_config(config);
  EXPECT_THAT(text, HasSubstr("// steps skipped in a row before the run ends; 0: no limit; an integer, 0 or more\n"
                              "    \"max_consecutive_skips\": 20"));
  const TrainConfig again = parse_train_config(text, "run/c.json");
  EXPECT_EQ(effective_config(again), effective_config(config)) << text;
  EXPECT_EQ(explained_config(again), text);
  EXPECT_EQ(effective_config(again)["optimizer"]["groups"][0]["eps"], 1e-6);
}

TEST(TrainConfig, EveryKeyCanBeSetToWhatItIs) {
  const Json all = effective_config(with({}));
  std::vector<std::string> assignments;
  for (const auto& [section, keys] : all.items()) {
    for (const auto& [key, value] : keys.items()) assignments.push_back(section + "." + key + "=" + value.dump());
  }
  EXPECT_GT(assignments.size(), 50u);
  EXPECT_EQ(effective_config(with(assignments)), all);
}

TEST(TrainConfig, PathsOfInputsBeginAtTheFile) {
  const TrainConfig config = with({});
  EXPECT_EQ(input_path(config, "a.txt"), "run/a.txt");
  EXPECT_EQ(input_path(config, "/data/a.txt"), "/data/a.txt");
}

TEST(TrainConfig, AModelMayHaveAFileOfItsOwn) {
  TempDir scratch;
  put_file(scratch / "model/config.json", R"({"model_type": "llama", "hidden_size": 64})");
  put_file(scratch / "c.json", R"({"model": {"config": "model/config.json"}, "data": {"files": ["a"]}, "training": {"steps": 1}})");
  const TrainConfig config = read_train_config(scratch / "c.json");
  EXPECT_EQ(config.model.config["hidden_size"], 64);
  EXPECT_EQ(config.model.config_path, scratch / "model/config.json");
  EXPECT_EQ(error_of([&] { read_train_config(scratch / "c.json", {"model.config=none.json"}); }).code, Exit::failed);
  EXPECT_EQ(error_of([&] { read_train_config(scratch / "none.json"); }).code, Exit::failed);
  put_file(scratch / "large.json", std::string(2 << 20, ' '));
  EXPECT_EQ(error_of([&] { read_train_config(scratch / "large.json"); }).what, "this is too large to be a config");
}

struct Bad {
  std::string assignment;          // over kSmall
  std::string key, expected, found, hint;
  std::string what = "wrong value in the config";
};

TEST(TrainConfig, BadValuesAreRefusedByName) {
  const std::string unknown = "unknown key in the config", misfit = "value does not fit the rest of the config";
  const std::vector<Bad> all = {
      {"optimizer.lrr=1", "optimizer.lrr", "", "", "optimizer.lr", unknown},
      {"optimiser.lr=1", "optimiser", "", "", "optimizer", unknown},
      {"lr=1", "lr", "", "", "optimizer.lr", unknown},
      {"xyzzy=1", "xyzzy", "", "", "", unknown},
      {"training.steps.more=1", "training.steps", "an integer, 1 or more", "10", "", "this key of the config has no keys in it"},
      {"optimizer=1", "optimizer", "an object", "1", ""},
      {"optimizer.lr=fast", "optimizer.lr", "a number, 0 or more", "\"fast\"", ""},
      {"optimizer.lr=-1", "optimizer.lr", "a number, 0 or more", "-1", ""},
      {"optimizer.lr=null", "optimizer.lr", "a number, 0 or more", "null", ""},
      {"optimizer.betas=[0.9]", "optimizer.betas", "two numbers from 0 to below 1", "[0.9]", ""},
      {"optimizer.betas=[0.9,1]", "optimizer.betas", "two numbers from 0 to below 1", "[0.9,1]", ""},
      {"optimizer.kind=lamb", "optimizer.kind", "adamw, adam or sgd", "\"lamb\"", ""},
      {"optimizer.groups=[{\"match\":\"*\",\"decay\":1}]", "optimizer.groups[0].decay", "", "", "", unknown},
      {"optimizer.groups=[{\"mach\":\"*\"}]", "optimizer.groups[0].mach", "", "", "optimizer.groups[0].match", unknown},
      {"optimizer.groups=[{\"lr\":1}]", "optimizer.groups[0].match", "", "", "", "key missing in the config"},
      {"optimizer.groups=[1]", "optimizer.groups[0]", "an object", "1", ""},
      {"training.steps=0", "training.steps", "an integer, 1 or more", "0", ""},
      {"training.steps=1.5", "training.steps", "an integer, 1 or more", "1.5", ""},
      {"training.steps=1e30", "training.steps", "an integer, 1 or more", "1e+30", ""},
      {"training.steps=18446744073709551615", "training.steps", "an integer, 1 or more", "18446744073709551615", ""},
      {"data.files=a.txt", "data.files", "a list of strings", "\"a.txt\"", ""},
      {"data.files=[1]", "data.files", "a list of strings", "[1]", ""},
      {"data.files=[]", "data.files", "", "", "", "key missing in the config"},
      {"data.shuffle=1", "data.shuffle", "true or false", "1", ""},
      {"data.dtype=int64", "data.dtype", "uint16, uint32 or null", "\"int64\"", ""},
      {"data.dtype=uint16", "data.dtype", "null where data.kind is text", "uint16", "", misfit},
      {"model.config=7", "model.config", "a path or an object", "7", ""},
      {"model.config=null", "model.config", "a path or an object", "null", ""},
      {"precision.param_dtype=int8", "precision.param_dtype", "float32, bfloat16 or float16", "\"int8\"", ""},
      {"loss_scale.backoff_factor=1", "loss_scale.backoff_factor", "a number between 0 and 1", "1", ""},
      {"loss_scale.initial_scale=4", "loss_scale", "the defaults unless precision.param_dtype is float16", "others", "", misfit},
      {"sharding.replicas=0", "sharding.replicas", "an integer from 1 to 1048576", "0", ""},
      {"sharding.wrap=MlpLayer", "sharding.wrap", "a list of strings, or null", "\"MlpLayer\"", ""},
      {"validation.interval=5", "validation.files", "", "", "", "key missing in the config"},
      {"checkpoint.interval=5", "checkpoint.directory", "", "", "", "key missing in the config"},
  };
  for (const Bad& bad : all) {
    const Finding finding = refused(kSmall, {bad.assignment}).finding();
    SCOPED_TRACE(bad.assignment);
    EXPECT_EQ(finding.code, Exit::usage);
    EXPECT_EQ(finding.what, bad.what);
    EXPECT_EQ(finding.where.key, bad.key);
    if (bad.what == "wrong value in the config" || bad.what == misfit) {
      EXPECT_EQ(finding.expected, bad.expected);
      EXPECT_EQ(finding.found, bad.found);
    }
    EXPECT_EQ(finding.hint, bad.hint);
  }
}

TEST(TrainConfig, ValuesThatDoNotFitEachOtherAreRefused) {
  const auto key_of = [](const std::vector<std::string>& assignments) { return refused(kSmall, assignments).finding().where.key; };
  EXPECT_EQ(key_of({"schedule.kind=cosine", "schedule.warmup_steps=10"}), "schedule.warmup_steps");
  EXPECT_EQ(key_of({"schedule.kind=cosine", "schedule.warmup_steps=9"}), "");
  EXPECT_EQ(key_of({"precision.param_dtype=float16", "loss_scale.min_scale=64", "loss_scale.max_scale=32"}), "loss_scale.min_scale");
  EXPECT_EQ(key_of({"sharding.shards=2", "sharding.replicas=2", "training.micro_batches=6"}), "training.micro_batches");
  EXPECT_EQ(key_of({"sharding.shards=2", "sharding.replicas=2", "training.micro_batches=8"}), "");
}

TEST(TrainConfig, AssignmentsMustBeSome) {
  for (const char* bad : {"optimizer.lr", "=1", ".lr=1", "optimizer.=1", "optimizer..lr=1", ""}) {
    EXPECT_EQ(refused(kSmall, {bad}).finding().where.key, "--set") << bad;
  }
}

TEST(TrainConfig, WhatIsNoJsonIsRefusedWithItsPlace) {
  const auto found = [](const std::string& text) { return refused(text).finding().found; };
  EXPECT_THAT(found("{\n  \"model\": [1,\n}"), HasSubstr("line 3, column 1: syntax error"));
  EXPECT_THAT(found("{\"optimizer\": {\"lr\": 1e999}}"), HasSubstr("number overflow"));
  EXPECT_EQ(refused("").finding().what, "the config is not JSON");
  EXPECT_EQ(refused("[]").finding().what, "wrong value in the config");
  EXPECT_EQ(refused(std::string("{\"model\": \"\xff\"}")).finding().what, "the config is not JSON");
  EXPECT_EQ(refused("{\"training\": {\"steps\": 1, \"steps\": 2}}").finding().what, "key given twice in the config");
  EXPECT_EQ(refused("{\"training\": {\"steps\": 1, \"seed\": 2}, \"data\": {\"seed\": 1}}").finding().where.key, "model.config");
  std::string deep = "{\"model\": {\"config\": ";
  for (int i = 0; i < 100'000; ++i) deep += "[";
  EXPECT_EQ(refused(deep).finding().what, "the config nests too deep");
}

TEST(TrainConfig, KeysSayWhatAResumedRunMayChange) {
  EXPECT_THAT(keys_of(Resumed::refused), testing::IsSupersetOf({"model.config", "data.seed", "optimizer.kind", "training.micro_batches"}));
  EXPECT_THAT(keys_of(Resumed::free), testing::IsSupersetOf({"checkpoint.directory", "logging.interval"}));
  EXPECT_THAT(keys_of(Resumed::listed), testing::IsSupersetOf({"optimizer.lr", "training.steps"}));
}

TEST(TrainConfig, RanksMustFit) {
  const auto fit = [](const std::vector<std::string>& assignments, int ranks) {
    TrainConfig config = with(assignments);
    fit_to_world(config, ranks);
    return config;
  };
  EXPECT_EQ(fit({}, 3).sharding.shards, 3);
  EXPECT_EQ(fit({}, 3).training.micro_batches, 3u);
  EXPECT_EQ(fit({"sharding.replicas=2", "training.micro_batches=8"}, 4).sharding.shards, 2);
  const auto key_of = [&](const std::vector<std::string>& assignments, int ranks) {
    return error_of([&] { fit(assignments, ranks); }).where.key;
  };
  EXPECT_EQ(key_of({"sharding.shards=4"}, 2), "sharding.shards");
  EXPECT_EQ(key_of({"sharding.replicas=2"}, 3), "sharding.replicas");
  EXPECT_EQ(key_of({"training.micro_batches=4"}, 3), "training.micro_batches");
}

}  // namespace
}  // namespace fsdpctl::train
