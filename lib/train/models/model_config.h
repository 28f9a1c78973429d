// Models from config.json: Hugging Face's for transformers of the Llama family, ours for the MLP.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "lib/train/models/llama.h"
#include "lib/train/models/mlp.h"

namespace fsdpctl::train {

using ModelConfig = std::variant<LlamaConfig, MlpConfig>;

// `text` is a file's content, or a part of a larger config; `path` is for messages. Keys that change nothing here (names of
// classes, dtypes, token ids of a generation) are not looked at; what would change the computation and is not supported is
// refused. Error(usage) for wrong types and impossible values, Error(unsupported) for other models.
ModelConfig parse_model_config(std::string_view text, const std::string& path);

std::unique_ptr<Module> make_model(const ModelConfig& config);
int64_t vocabulary_of(const ModelConfig& config);
// The kind of the modules that make units by default: a layer.
std::string layer_kind(const ModelConfig& config);

}  // namespace fsdpctl::train
