// A small model without attention: what comes next is guessed from the current token alone.
#pragma once

#include <cstdint>
#include <memory>

#include "lib/train/models/module.h"

namespace fsdpctl::train {

struct MlpConfig {
  int64_t vocab_size = 256;
  int64_t hidden_size = 64;
  int64_t intermediate_size = 256;
  int64_t num_hidden_layers = 2;
  double dropout = 0;
  bool tie_word_embeddings = false;
};

// embed, layers.N (up, GELU, down, with a residual around), head; tokens [...] to logits [..., vocabulary]. A layer's kind is
// "MlpLayer".
std::unique_ptr<Module> make_mlp(const MlpConfig& config);

}  // namespace fsdpctl::train
