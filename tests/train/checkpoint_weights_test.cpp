#include "lib/train/checkpoint_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/all_formats.h"
#include "lib/base/cast.h"
#include "lib/base/file.h"
#include "lib/ckpt/format.h"
#include "lib/train/models/model_config.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::train {
namespace {

using nlohmann::json;

// What make_llama.py recorded.
class Recorded {
 public:
  Recorded() : json_(json::parse(get_file(test_data("llama/golden.json")))), bytes_(get_file(test_data("llama/tensors.bin"))) {}
  json config(const std::string& model) const { return json_["models"][model]["config"]; }
  std::vector<float> weight(const std::string& model, const std::string& fqn) const {
    const json& entry = json_["tensors"].at(model + " weight " + fqn);
    std::vector<float> values(element_count(entry["shape"].get<std::vector<int64_t>>()));
    std::memcpy(values.data(), bytes_.data() + entry["offset"].get<size_t>(), values.size() * sizeof(float));
    return values;
  }

 private:
  const json json_;
  const std::string bytes_;
};

std::unique_ptr<Module> model_of(const json& config) { return make_model(parse_model_config(config.dump(), "config.json")); }

Checkpoint open(const std::string& path) {
  FindingSink sink;
  static const FormatList formats = all_formats();
  Checkpoint checkpoint = open_checkpoint(formats, path, sink).checkpoint;
  resolve_pieces(checkpoint, 1, sink);
  return checkpoint;
}

std::map<std::string, std::vector<float>> all(const Checkpoint& checkpoint, Module& model) {
  const ParameterValues values = checkpoint_weights(checkpoint, model);
  std::map<std::string, std::vector<float>> whole;
  for (const NamedParameter& parameter : named_parameters(model)) {
    std::vector<float>& out = whole[parameter.fqn];
    out.resize(element_count(parameter.slot->shape));
    // In two parts, as two ranks would.
    const size_t cut = out.size() / 3;
    values(parameter, cut, std::span(out).subspan(cut));
    values(parameter, 0, std::span(out).first(cut));
  }
  return whole;
}

TEST(CheckpointWeights, OfHuggingFaceInSeveralFilesAre16BitsWidened) {
  const Recorded recorded;
  const std::unique_ptr<Module> model = model_of(recorded.config("tied"));
  const auto found = all(open(test_data("llama/hf")), *model);
  EXPECT_EQ(found.size(), 3u * 16 + 2);
  for (const auto& [fqn, values] : found) {
    const std::vector<float> wide = recorded.weight("tied", fqn);
    std::vector<uint16_t> narrow(wide.size());
    std::vector<float> expected(wide.size());
    cast(DType::float32, DType::bfloat16, std::as_bytes(std::span(wide)), std::as_writable_bytes(std::span(narrow)));
    cast(DType::bfloat16, DType::float32, std::as_bytes(std::span(narrow)), std::as_writable_bytes(std::span(expected)));
    EXPECT_EQ(values, expected) << fqn;
  }
}

TEST(CheckpointWeights, OfDcp) {
  const Recorded recorded;
  const std::unique_ptr<Module> model = model_of(recorded.config("grouped"));
  const auto found = all(open(test_data("llama/dcp")), *model);
  EXPECT_EQ(found.size(), 3u * 9 + 3);
  for (const auto& [fqn, values] : found) EXPECT_EQ(values, recorded.weight("grouped", fqn)) << fqn;
}

TEST(CheckpointWeights, WhatDiffersIsListed) {
  const Checkpoint checkpoint = open(test_data("llama/hf"));
  json config = Recorded().config("tied");
  const auto finding_of = [&](const json& changes) {
    json changed = config;
    changed.update(changes);
    const std::unique_ptr<Module> model = model_of(changed);
    const Finding finding = error_of([&] { checkpoint_weights(checkpoint, *model); });
    EXPECT_EQ(finding.code, Exit::refused) << changes.dump();
    return finding.found;
  };
  EXPECT_NE(finding_of({{"vocab_size", 97}}).find("model.embed_tokens.weight has shape [96,48], not [97,48]"), std::string::npos);
  EXPECT_NE(finding_of({{"tie_word_embeddings", false}}).find("lm_head.weight is missing"), std::string::npos);
  EXPECT_NE(finding_of({{"mlp_bias", false}}).find("model.layers.0.mlp.down_proj.bias is not in the model"), std::string::npos);
  const std::string many = finding_of({{"num_hidden_layers", 5}});
  EXPECT_NE(many.find("model.layers.3.self_attn.q_proj.weight is missing"), std::string::npos);
  EXPECT_NE(many.find("; and 22 more"), std::string::npos) << many;
}

TEST(CheckpointWeights, FurtherTensorsMustBeAllowed) {
  const Checkpoint checkpoint = open(test_data("llama/hf"));
  json config = Recorded().config("tied");
  config["num_hidden_layers"] = 2;
  const std::unique_ptr<Module> model = model_of(config);
  EXPECT_EQ(error_of([&] { checkpoint_weights(checkpoint, *model); }).code, Exit::refused);
  EXPECT_NO_THROW(checkpoint_weights(checkpoint, *model, /*extra_allowed=*/true));
}

// ---- checkpoints made here

struct Stored {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

template <class T>
Stored stored(const std::string& dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}};
}

class MadeWeights : public ::testing::Test {
 protected:
  MadeWeights() {
    const std::unique_ptr<Module> model = make_model(config_);
    name_modules(*model);
    float value = 1;
    for (const NamedParameter& parameter : named_parameters(*model)) {
      std::vector<float> values(element_count(parameter.slot->shape));
      for (float& v : values) v = value++ / 8;
      tensors_[parameter.fqn] = stored("F32", parameter.slot->shape, values);
    }
  }

  Checkpoint checkpoint() {
    json header;
    std::string data;
    for (const auto& [name, tensor] : tensors_) {
      header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    const std::string path = dir_ / (std::to_string(++files_) + ".safetensors");
    put_file(path, std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
    return open(path);
  }
  std::map<std::string, std::vector<float>> read() {
    const Checkpoint made = checkpoint();
    const std::unique_ptr<Module> model = make_model(config_);
    return all(made, *model);
  }
  Finding refusal() {
    const Finding finding = error_of([&] { read(); });
    EXPECT_EQ(finding.code, Exit::refused);
    return finding;
  }

  MlpConfig config_{4, 2, 3, 1, 0, true};
  std::map<std::string, Stored> tensors_;
  TempDir dir_{TempDir::Place::memory};
  int files_ = 0;
};

TEST_F(MadeWeights, EitherNameOfATiedParameterIsEnough) {
  const auto first = read();
  ASSERT_TRUE(first.contains("embed.weight"));
  tensors_["head.weight"] = tensors_["embed.weight"];
  EXPECT_EQ(read(), first);
  tensors_.erase("embed.weight");
  EXPECT_EQ(read(), first);
  tensors_.erase("head.weight");
  EXPECT_EQ(refusal().found, "embed.weight is missing");
}

TEST_F(MadeWeights, TiedParametersThatDifferAreRefused) {
  tensors_["head.weight"] = tensors_["embed.weight"];
  tensors_["head.weight"].bytes.back() = 0x41;
  const Finding finding = refusal();
  EXPECT_EQ(finding.where.key, "embed.weight");
  EXPECT_EQ(finding.found, "head.weight with other values");
  tensors_["head.weight"].shape = {8};
  EXPECT_EQ(refusal().found, "head.weight has shape [8], not [4,2]");
}

TEST_F(MadeWeights, HalvesAreWidenedAndOtherDtypesRefused) {
  tensors_["embed.weight"] = stored<uint16_t>("F16", {4, 2}, {0x3C00, 0xC000, 0x0001, 0x7BFF, 0, 0x8000, 0x3555, 0x7C00});
  const std::vector<float> found = read()["embed.weight"];
  EXPECT_EQ(found, (std::vector<float>{1, -2, 0x1p-24f, 65504, 0, -0.0f, 0x1.554p-2f, std::numeric_limits<float>::infinity()}));
  tensors_["embed.weight"] = stored<double>("F64", {4, 2}, std::vector<double>(8, 0.1));
  EXPECT_EQ(refusal().found, "embed.weight is of dtype float64");
  tensors_["embed.weight"] = stored<int32_t>("I32", {4, 2}, std::vector<int32_t>(8, 1));
  EXPECT_EQ(refusal().found, "embed.weight is of dtype int32");
}

TEST_F(MadeWeights, BuffersMayBeThere) {
  const std::unique_ptr<Module> llama = model_of(Recorded().config("grouped"));
  name_modules(*llama);
  tensors_.clear();
  for (const NamedParameter& parameter : named_parameters(*llama)) {
    tensors_[parameter.fqn] = stored("F32", parameter.slot->shape, std::vector<float>(element_count(parameter.slot->shape)));
  }
  tensors_["model.rotary_emb.inv_freq"] = stored("F32", {4}, std::vector<float>(4));   // old checkpoints have it
  const Checkpoint made = checkpoint();
  EXPECT_NO_THROW(checkpoint_weights(made, *llama));
}

}  // namespace
}  // namespace fsdpctl::train
