#include "lib/train/models/model_config.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "lib/base/finding.h"

namespace fsdpctl::train {
namespace {

using nlohmann::json;

constexpr int64_t kMost = int64_t{1} << 28;         // of any size: products of two stay far from overflow
constexpr int64_t kMostLayers = int64_t{1} << 16;   // each takes memory before any parameter does
constexpr double kMostParameters = 1e15;            // bytes of all of them, and of their moments, are counted in 64 bits

// Values of an object, with messages that name key and file.
class Keys {
 public:
  Keys(const json& object, std::string path, std::string prefix = "") : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {}

  bool contains(const char* key) const { return object_.contains(key); }
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const json& at(const char* key) const { return object_[key]; }

  int64_t size(const char* key, std::optional<int64_t> otherwise = {}, int64_t least = 1, int64_t most = kMost) const {
    if (!present(key, otherwise.has_value())) return *otherwise;
    const json& value = object_[key];
    if (!value.is_number_integer() || value < least || value > most) {
      throw wrong(key, fmt::format("an integer from {} to {}", least, most));
    }
    return value.get<int64_t>();
  }
  double number(const char* key, std::optional<double> otherwise, double above, double below = std::numeric_limits<double>::infinity()) const {
    if (!present(key, otherwise.has_value())) return *otherwise;
    const json& value = object_[key];
    if (!value.is_number() || !(value.get<double>() > above) || !(value.get<double>() < below)) {
      throw wrong(key, fmt::format("a number above {}{}", above, below < 1e300 ? fmt::format(" and below {}", below) : ""));
    }
    return value.get<double>();
  }
  double probability(const char* key) const {
    if (!has(key)) return 0;
    const json& value = object_[key];
    if (!value.is_number() || value < 0.0 || value >= 1.0) throw wrong(key, "a number from 0 to below 1");
    return value.get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_boolean()) throw wrong(key, "true or false");
    return object_[key].get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_[key].is_string()) throw wrong(key, "a string");
    return object_[key].get<std::string>();
  }

  Error wrong(const char* key, std::string expected) const { return of(Exit::usage, "model config has a wrong value", key, std::move(expected)); }
  Error unsupported(const char* key, std::string expected) const {
    return of(Exit::unsupported, "model config asks for what is not supported", key, std::move(expected));
  }

 private:
  bool present(const char* key, bool optional) const {
    if (has(key)) return true;
    if (!optional) throw Error(Exit::usage, "model config lacks a key").at(path_).key(prefix_ + key);
    return false;
  }
  Error of(Exit code, const char* what, const char* key, std::string expected) const {
    const std::string found = object_.contains(key) ? object_[key].dump(-1, ' ', false, json::error_handler_t::replace) : "nothing";
    return Error(code, what).at(path_).key(prefix_ + key).saw(std::move(expected), found);
  }

  const json& object_;
  const std::string path_, prefix_;
};

LlamaConfig::Rope parse_rope(const Keys& keys, const std::string& path) {
  LlamaConfig::Rope rope;
  // Two spellings: rope_theta and rope_scaling, or (transformers 5) all in rope_parameters.
  const char* where = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  rope.theta = keys.number("rope_theta", rope.theta, 0);
  if (keys.number("partial_rotary_factor", 1, 0) != 1) throw keys.unsupported("partial_rotary_factor", "1");
  if (!keys.has(where)) return rope;
  if (!keys.at(where).is_object()) throw keys.wrong(where, "an object");
  const Keys scaling(keys.at(where), path, std::string(where) + ".");
  rope.theta = scaling.number("rope_theta", rope.theta, 0);
  if (scaling.number("partial_rotary_factor", 1, 0) != 1) throw scaling.unsupported("partial_rotary_factor", "1");
  const char* type_key = scaling.has("type") && !scaling.has("rope_type") ? "type" : "rope_type";
  if (!scaling.has(type_key) && scaling.has("factor")) throw scaling.wrong(type_key, "default, linear or llama3");
  const std::string type = scaling.text(type_key, "default");
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") throw scaling.unsupported(type_key, "default, linear or llama3");
  rope.kind = type == "linear" ? LlamaConfig::Rope::linear : LlamaConfig::Rope::llama3;
  rope.factor = scaling.number("factor", {}, 0);
  if (rope.kind == LlamaConfig::Rope::linear) return rope;
  rope.low_freq_factor = scaling.number("low_freq_factor", {}, 0);
  rope.high_freq_factor = scaling.number("high_freq_factor", {}, rope.low_freq_factor);
  rope.original_max_position_embeddings = scaling.number("original_max_position_embeddings", {}, 0);
  return rope;
}

// Parameters, and so sizes of everything, in a double: no product overflows it.
void check_size(const Keys& keys, double layers, double in_each, double rest) {
  const double parameters = layers * in_each + rest;
  if (parameters > kMostParameters) {
    throw keys.wrong("hidden_size", fmt::format("sizes that make at most {:.0e} parameters (these make {:.0e})", kMostParameters, parameters));
  }
}

LlamaConfig parse_llama(const Keys& keys, const std::string& path, bool mistral) {
  LlamaConfig config;
  config.vocab_size = keys.size("vocab_size");
  config.hidden_size = keys.size("hidden_size");
  config.intermediate_size = keys.size("intermediate_size");
  config.num_hidden_layers = keys.size("num_hidden_layers", {}, 1, kMostLayers);
  config.num_attention_heads = keys.size("num_attention_heads");
  config.num_key_value_heads = keys.size("num_key_value_heads", mistral ? 8 : config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    throw keys.wrong("num_key_value_heads", fmt::format("a divisor of num_attention_heads ({})", config.num_attention_heads));
  }
  if (!keys.has("head_dim") && config.hidden_size % config.num_attention_heads != 0) {
    throw keys.wrong("num_attention_heads", fmt::format("a divisor of hidden_size ({})", config.hidden_size));
  }
  config.head_dim = keys.size("head_dim", config.hidden_size / config.num_attention_heads);
  if (config.head_dim % 2 != 0) throw keys.wrong("head_dim", "an even number");
  config.pad_token_id = keys.size("pad_token_id", -1, -1);
  if (config.pad_token_id >= config.vocab_size) throw keys.wrong("pad_token_id", fmt::format("below vocab_size ({})", config.vocab_size));
  config.rms_norm_eps = keys.number("rms_norm_eps", config.rms_norm_eps, 0);
  config.initializer_range = keys.number("initializer_range", config.initializer_range, 0);
  config.attention_dropout = keys.probability("attention_dropout");
  config.attention_bias = keys.flag("attention_bias", false);
  config.mlp_bias = keys.flag("mlp_bias", false);
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", false);
  config.rope = parse_rope(keys, path);
  const auto width = static_cast<double>(config.hidden_size), heads = static_cast<double>(config.head_dim);
  check_size(keys, static_cast<double>(config.num_hidden_layers),
             width * (2 * heads * static_cast<double>(config.num_attention_heads + config.num_key_value_heads) +
                      3 * static_cast<double>(config.intermediate_size)),
             2 * width * static_cast<double>(config.vocab_size));

  const std::string activation = keys.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") throw keys.unsupported("hidden_act", "silu");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (mistral && keys.flag(key, false)) throw keys.unsupported(key, "false, as Mistral has it");
  }
  const bool windowed = mistral && !keys.contains("sliding_window");   // its default is 4096
  if (windowed || keys.has("sliding_window")) throw keys.unsupported("sliding_window", "null");
  if (keys.has("quantization_config")) throw keys.unsupported("quantization_config", "nothing");
  const std::string attention = keys.text("_attn_implementation", keys.text("attn_implementation", "sdpa"));
  if (attention != "sdpa" && attention != "eager") throw keys.unsupported("attn_implementation", "sdpa or eager");
  config.eager_attention = attention == "eager";
  return config;
}

MlpConfig parse_mlp(const Keys& keys) {
  MlpConfig config;
  config.vocab_size = keys.size("vocab_size");
  config.hidden_size = keys.size("hidden_size");
  config.intermediate_size = keys.size("intermediate_size");
  config.num_hidden_layers = keys.size("num_hidden_layers", {}, 1, kMostLayers);
  check_size(keys, static_cast<double>(config.num_hidden_layers),
             2 * static_cast<double>(config.hidden_size) * static_cast<double>(config.intermediate_size),
             2 * static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size));
  config.dropout = keys.probability("dropout");
  config.tie_word_embeddings = keys.flag("tie_word_embeddings", false);
  return config;
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& path) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (object.is_discarded()) throw Error(Exit::usage, "model config is not JSON").at(path);
  if (!object.is_object()) throw Error(Exit::usage, "model config is not a JSON object").at(path).found_only(object.type_name());
  const Keys keys(object, path);
  const std::string type = keys.text("model_type", "");
  if (type == "llama" || type == "mistral") return parse_llama(keys, path, type == "mistral");
  if (type == "mlp") return parse_mlp(keys);
  throw keys.unsupported("model_type", "llama, mistral or mlp");
}

std::unique_ptr<Module> make_model(const ModelConfig& config) {
  if (const auto* llama = std::get_if<LlamaConfig>(&config)) return make_llama(*llama);
  return make_mlp(std::get<MlpConfig>(config));
}

int64_t vocabulary_of(const ModelConfig& config) {
  return std::visit([](const auto& of_kind) { return of_kind.vocab_size; }, config);
}

std::string layer_kind(const ModelConfig& config) {
  return std::holds_alternative<LlamaConfig>(config) ? "LlamaDecoderLayer" : "MlpLayer";
}

}  // namespace fsdpctl::train
