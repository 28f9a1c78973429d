// Transformers of the Llama family, operation by operation as Hugging Face's, under its names: the same weights give the
// same logits, bit for bit, as `transformers` gives with attn_implementation="sdpa".
#pragma once

#include <cstdint>
#include <memory>

#include "lib/train/models/module.h"

namespace fsdpctl::train {

// config.json's keys.
struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 128;
  int64_t pad_token_id = -1;             // -1: none
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  bool eager_attention = false;          // softmax(q k) v in single operations, as attn_implementation="eager"

  struct Rope {
    enum Kind : uint8_t { usual, linear, llama3 } kind = usual;   // config.json's rope_type
    double theta = 10000;
    double factor = 1;                   // linear, llama3
    double low_freq_factor = 1, high_freq_factor = 4;             // llama3
    double original_max_position_embeddings = 8192;               // llama3
  } rope;
};

// Tokens [batch, sequence] to logits [batch, sequence, vocabulary]; causal, without padding. A layer's kind is
// "LlamaDecoderLayer".
std::unique_ptr<Module> make_llama(const LlamaConfig& config);

}  // namespace fsdpctl::train
