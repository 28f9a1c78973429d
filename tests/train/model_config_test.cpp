#include "lib/train/models/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::train {
namespace {

using nlohmann::json;

const json kLlama = {{"model_type", "llama"}, {"vocab_size", 96},       {"hidden_size", 48},
                     {"intermediate_size", 80}, {"num_hidden_layers", 3}, {"num_attention_heads", 6}};
const json kMlp = {{"model_type", "mlp"}, {"vocab_size", 96}, {"hidden_size", 48}, {"intermediate_size", 80}, {"num_hidden_layers", 3}};

// `base` with the keys of `changes`; "absent" there takes one out.
json with(json base, const json& changes) {
  for (const auto& [key, value] : changes.items()) {
    value == "absent" ? static_cast<void>(base.erase(key)) : static_cast<void>(base[key] = value);
  }
  return base;
}
ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }
LlamaConfig llama(const json& changes) { return std::get<LlamaConfig>(parse(with(kLlama, changes))); }

TEST(ModelConfig, OfHuggingFace) {
  const auto config = std::get<LlamaConfig>(parse_model_config(get_file(test_data("llama/hf/config.json")), "config.json"));
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.pad_token_id, -1);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(config.attention_bias && config.mlp_bias && config.tie_word_embeddings);
  EXPECT_EQ(config.rope.kind, LlamaConfig::Rope::llama3);
  EXPECT_EQ(config.rope.theta, 20000);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 32);
}

TEST(ModelConfig, DefaultsAreHuggingFaces) {
  const LlamaConfig config = llama({});
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(config.rope.kind, LlamaConfig::Rope::usual);
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_FALSE(config.attention_bias || config.mlp_bias || config.tie_word_embeddings || config.eager_attention);
}

TEST(ModelConfig, RopeHasTwoSpellings) {
  const LlamaConfig before = llama({{"rope_theta", 5e5}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}});
  const LlamaConfig now = llama({{"rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 4.0}}}});
  for (const LlamaConfig& config : {before, now}) {
    EXPECT_EQ(config.rope.kind, LlamaConfig::Rope::linear);
    EXPECT_EQ(config.rope.theta, 5e5);
    EXPECT_EQ(config.rope.factor, 4);
  }
  EXPECT_EQ(llama({{"rope_scaling", nullptr}, {"rope_parameters", {{"rope_theta", 7}}}}).rope.theta, 7);
}

TEST(ModelConfig, OfOtherKinds) {
  const json mistral = with(kLlama, {{"model_type", "mistral"}, {"num_key_value_heads", 2}, {"sliding_window", nullptr}});
  EXPECT_EQ(std::get<LlamaConfig>(parse(mistral)).num_key_value_heads, 2);
  EXPECT_EQ(std::get<MlpConfig>(parse(with(kMlp, {{"dropout", 0.5}}))).dropout, 0.5);
  EXPECT_EQ(layer_kind(parse(kMlp)), "MlpLayer");
  EXPECT_EQ(layer_kind(parse(kLlama)), "LlamaDecoderLayer");
  EXPECT_EQ(vocabulary_of(parse(kMlp)), 96);
}

struct Bad {
  json changes;
  Exit code;
  std::string key;
};

void expect_refused(const json& base, const std::vector<Bad>& cases) {
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.changes.dump());
    const Finding finding = error_of([&] { parse(with(base, bad.changes)); });
    EXPECT_EQ(finding.code, bad.code);
    EXPECT_EQ(finding.where.key, bad.key);
    EXPECT_EQ(finding.where.path, "config.json");
  }
}

TEST(ModelConfig, WrongTypesAndImpossibleNumbers) {
  std::vector<Bad> cases;
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    const std::vector<json> values = {"absent", nullptr, 0, -1, 1.5, "8", true, json::array({8}), json::object(), uint64_t{1} << 63, int64_t{1} << 40};
    for (const json& value : values) cases.push_back({{{key, value}}, Exit::usage, key});
  }
  const std::vector<Bad> more = {
      {{{"num_attention_heads", 5}}, Exit::usage, "num_attention_heads"},   // 48 / 5
      {{{"num_key_value_heads", 4}}, Exit::usage, "num_key_value_heads"},
      {{{"num_key_value_heads", 12}}, Exit::usage, "num_key_value_heads"},
      {{{"num_key_value_heads", 0}}, Exit::usage, "num_key_value_heads"},
      {{{"head_dim", 7}}, Exit::usage, "head_dim"},
      {{{"head_dim", 0}}, Exit::usage, "head_dim"},
      {{{"num_attention_heads", 16}}, Exit::usage, "head_dim"},             // 48 / 16 is odd
      {{{"pad_token_id", 96}}, Exit::usage, "pad_token_id"},
      {{{"pad_token_id", -2}}, Exit::usage, "pad_token_id"},
      {{{"rms_norm_eps", 0}}, Exit::usage, "rms_norm_eps"},
      {{{"rms_norm_eps", "1e-5"}}, Exit::usage, "rms_norm_eps"},
      {{{"initializer_range", -0.1}}, Exit::usage, "initializer_range"},
      {{{"attention_dropout", 1}}, Exit::usage, "attention_dropout"},
      {{{"attention_dropout", true}}, Exit::usage, "attention_dropout"},
      {{{"attention_bias", 1}}, Exit::usage, "attention_bias"},
      {{{"mlp_bias", "false"}}, Exit::usage, "mlp_bias"},
      {{{"tie_word_embeddings", 0}}, Exit::usage, "tie_word_embeddings"},
      {{{"hidden_act", 3}}, Exit::usage, "hidden_act"},
      {{{"model_type", 3}}, Exit::usage, "model_type"},
      {{{"num_hidden_layers", 70000}}, Exit::usage, "num_hidden_layers"},
      {{{"hidden_size", 1 << 27}, {"intermediate_size", 1 << 27}, {"num_attention_heads", 8}}, Exit::usage, "hidden_size"},   // 10^17 parameters
      {{{"rope_theta", 0}}, Exit::usage, "rope_theta"},
      {{{"rope_theta", "10000"}}, Exit::usage, "rope_theta"},
      {{{"rope_scaling", 2}}, Exit::usage, "rope_scaling"},
      {{{"rope_parameters", {{"rope_theta", -1}}}}, Exit::usage, "rope_parameters.rope_theta"},
      {{{"rope_scaling", {{"factor", 2}}}}, Exit::usage, "rope_scaling.rope_type"},
      {{{"rope_scaling", {{"rope_type", 2}}}}, Exit::usage, "rope_scaling.rope_type"},
      {{{"rope_scaling", {{"type", "linear"}}}}, Exit::usage, "rope_scaling.factor"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}}, Exit::usage, "rope_scaling.factor"},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}}, Exit::usage,
       "rope_scaling.high_freq_factor"},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}}}}, Exit::usage,
       "rope_scaling.original_max_position_embeddings"},
  };
  cases.insert(cases.end(), more.begin(), more.end());
  expect_refused(kLlama, cases);
  expect_refused(kMlp, {{{{"dropout", 1.0}}, Exit::usage, "dropout"},
                        {{{"vocab_size", "absent"}}, Exit::usage, "vocab_size"},
                        {{{"hidden_size", 1 << 27}, {"intermediate_size", 1 << 27}}, Exit::usage, "hidden_size"},
                        {{{"num_hidden_layers", 1 << 20}}, Exit::usage, "num_hidden_layers"}});
}

TEST(ModelConfig, WhatIsNotSupportedIsNamed) {
  std::vector<Bad> cases = {
      {{{"model_type", "qwen2"}}, Exit::unsupported, "model_type"},
      {{{"model_type", "absent"}}, Exit::unsupported, "model_type"},
      {{{"hidden_act", "gelu"}}, Exit::unsupported, "hidden_act"},
      {{{"sliding_window", 4096}}, Exit::unsupported, "sliding_window"},
      {{{"quantization_config", {{"bits", 4}}}}, Exit::unsupported, "quantization_config"},
      {{{"attn_implementation", "flash_attention_2"}}, Exit::unsupported, "attn_implementation"},
      {{{"partial_rotary_factor", 0.5}}, Exit::unsupported, "partial_rotary_factor"},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, Exit::unsupported, "rope_parameters.partial_rotary_factor"},
  };
  for (const char* type : {"dynamic", "yarn", "longrope", "su", "proportional"}) {
    cases.push_back({{{"rope_scaling", {{"type", type}, {"factor", 2}}}}, Exit::unsupported, "rope_scaling.type"});
    cases.push_back({{{"rope_parameters", {{"rope_type", type}, {"factor", 2}}}}, Exit::unsupported, "rope_parameters.rope_type"});
  }
  expect_refused(kLlama, cases);
  const json mistral = with(kLlama, {{"model_type", "mistral"}, {"num_key_value_heads", 2}, {"sliding_window", nullptr}});
  expect_refused(mistral, {{{{"sliding_window", "absent"}}, Exit::unsupported, "sliding_window"},   // the default is a window
                           {{{"num_key_value_heads", "absent"}}, Exit::usage, "num_key_value_heads"},   // and 8 of them
                           {{{"attention_bias", true}}, Exit::unsupported, "attention_bias"}});
}

TEST(ModelConfig, WhatIsNoObject) {
  for (const char* text : {"", "{", "[1]", "3", "\"llama\"", "{\"vocab_size\": 1e999}", "\xff"}) {
    const Finding finding = error_of([&] { parse_model_config(text, "config.json"); });
    EXPECT_EQ(finding.code, Exit::usage) << text;
    EXPECT_EQ(finding.where.path, "config.json") << text;
  }
  EXPECT_EQ(error_of([] { parse_model_config(std::string(1 << 20, '['), "config.json"); }).code, Exit::usage);   // no recursion
}

}  // namespace
}  // namespace fsdpctl::train
