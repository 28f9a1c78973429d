#include "lib/train/models/llama.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "lib/train/models/layers.h"

namespace fsdpctl::train {
namespace {

using std::make_unique;

constexpr int64_t kLargestGroupedHead = 256;   // up to here Hugging Face lets attention itself repeat the keys of a group

std::unique_ptr<Linear> projection(const LlamaConfig& config, int64_t inputs, int64_t outputs, bool bias) {
  return make_unique<Linear>(inputs, outputs, bias, Initial{Initial::normal, config.initializer_range});
}

// ---- rotary positions

// Of each pair of elements, radians per position. FP32 all the way, as Hugging Face has it, whatever the model's dtype.
at::Tensor rope_frequencies(const LlamaConfig& config) {
  const LlamaConfig::Rope& rope = config.rope;
  const at::Tensor exponent = at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(config.head_dim);
  at::Tensor frequency = 1.0 / at::pow(at::Scalar(rope.theta), exponent);
  if (rope.kind == LlamaConfig::Rope::linear) frequency = frequency / rope.factor;
  if (rope.kind != LlamaConfig::Rope::llama3) return frequency;
  // Long waves are stretched, short ones kept, those between mixed.
  const double context = rope.original_max_position_embeddings;
  const at::Tensor wave = 2 * std::numbers::pi / frequency;
  const at::Tensor slowed = at::where(wave > context / rope.low_freq_factor, frequency / rope.factor, frequency);
  const at::Tensor smooth = (context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor mixed = (1 - smooth) * slowed / rope.factor + smooth * slowed;
  const at::Tensor between = wave.lt(context / rope.high_freq_factor).logical_not() * wave.gt(context / rope.low_freq_factor).logical_not();
  return at::where(between, mixed, slowed);
}

at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.narrow(-1, half, x.size(-1) - half), x.narrow(-1, 0, half)}, -1);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) { return x * cos + rotate_half(x) * sin; }

// ---- layers. Inputs of those that know positions: hidden states, cosines, sines.

class LlamaAttention : public Module {
 public:
  explicit LlamaAttention(const LlamaConfig& config)
      : Module("LlamaAttention"),
        config_(config),
        q_(add_child("q_proj", projection(config, config.hidden_size, config.num_attention_heads * config.head_dim, config.attention_bias))),
        k_(add_child("k_proj", projection(config, config.hidden_size, config.num_key_value_heads * config.head_dim, config.attention_bias))),
        v_(add_child("v_proj", projection(config, config.hidden_size, config.num_key_value_heads * config.head_dim, config.attention_bias))),
        o_(add_child("o_proj", projection(config, config.num_attention_heads * config.head_dim, config.hidden_size, config.attention_bias))),
        dropout_(add_child("dropout", make_unique<Dropout>(config.attention_dropout))) {}

  Tensors forward(const Tensors& inputs) override {
    const at::Tensor& x = inputs[0];
    const int64_t batch = x.size(0), length = x.size(1);
    const auto heads = [&](Linear& project) { return project(x).view({batch, length, -1, config_.head_dim}).transpose(1, 2); };
    at::Tensor query = heads(q_), key = heads(k_);
    const at::Tensor value = heads(v_);
    const at::Tensor cos = inputs[1].unsqueeze(1), sin = inputs[2].unsqueeze(1);
    query = rotate(query, cos, sin);
    key = rotate(key, cos, sin);
    const bool drops = config_.attention_dropout > 0 && micro_batch().training;
    const at::Tensor mixed = config_.eager_attention || drops ? eager(query, key, value) : fused(query, key, value);
    return {o_(mixed.transpose(1, 2).contiguous().reshape({batch, length, -1}).contiguous())};
  }

 private:
  double scale() const { return std::pow(static_cast<double>(config_.head_dim), -0.5); }

  at::Tensor fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) const {
    const bool causal = query.size(2) > 1, grouped = config_.num_key_value_heads != config_.num_attention_heads;
    if (config_.head_dim > kLargestGroupedHead) {
      return at::scaled_dot_product_attention(query, repeated(key), repeated(value), {}, 0.0, causal, scale());
    }
    return at::scaled_dot_product_attention(query, key, value, {}, 0.0, causal, scale(), grouped);
  }

  at::Tensor eager(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
    const int64_t length = query.size(2);
    const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
    at::Tensor weights = at::matmul(query, repeated(key).transpose(2, 3)) * scale();
    weights = weights.masked_fill(later, -std::numeric_limits<double>::infinity());
    weights = dropout_(at::softmax(weights, -1, at::kFloat).to(query.scalar_type()));
    return at::matmul(weights, repeated(value));
  }

  // Keys and values of a group, for each of its heads.
  at::Tensor repeated(const at::Tensor& x) const {
    const int64_t times = config_.num_attention_heads / config_.num_key_value_heads;
    if (times == 1) return x;
    return x.unsqueeze(2).expand({x.size(0), x.size(1), times, x.size(2), x.size(3)}).reshape({x.size(0), -1, x.size(2), x.size(3)});
  }

  const LlamaConfig config_;
  Linear &q_, &k_, &v_, &o_;
  Module& dropout_;
};

class LlamaMlp : public Module {
 public:
  explicit LlamaMlp(const LlamaConfig& config)
      : Module("LlamaMLP"),
        gate_(add_child("gate_proj", projection(config, config.hidden_size, config.intermediate_size, config.mlp_bias))),
        up_(add_child("up_proj", projection(config, config.hidden_size, config.intermediate_size, config.mlp_bias))),
        down_(add_child("down_proj", projection(config, config.intermediate_size, config.hidden_size, config.mlp_bias))) {}

  Tensors forward(const Tensors& inputs) override { return {down_(at::silu(gate_(inputs[0])) * up_(inputs[0]))}; }

 private:
  Linear &gate_, &up_, &down_;
};

class LlamaDecoderLayer : public Module {
 public:
  explicit LlamaDecoderLayer(const LlamaConfig& config)
      : Module("LlamaDecoderLayer"),
        attention_(add_child("self_attn", make_unique<LlamaAttention>(config))),
        mlp_(add_child("mlp", make_unique<LlamaMlp>(config))),
        before_attention_(add_child("input_layernorm", make_unique<RmsNorm>(config.hidden_size, config.rms_norm_eps))),
        before_mlp_(add_child("post_attention_layernorm", make_unique<RmsNorm>(config.hidden_size, config.rms_norm_eps))) {}

  Tensors forward(const Tensors& inputs) override {
    const at::Tensor x = inputs[0] + attention_(Tensors{before_attention_(inputs[0]), inputs[1], inputs[2]})[0];
    return {x + mlp_(before_mlp_(x))};
  }

 private:
  Module &attention_, &mlp_, &before_attention_, &before_mlp_;
};

class LlamaModel : public Module {
 public:
  explicit LlamaModel(const LlamaConfig& config)
      : Module("LlamaModel"),
        embed_(add_child("embed_tokens", make_unique<Embedding>(config.vocab_size, config.hidden_size,
                                                                Initial{Initial::normal, config.initializer_range},
                                                                config.pad_token_id))) {
    ModuleList& layers = add_child("layers", make_unique<ModuleList>());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_.push_back(&layers.add(make_unique<LlamaDecoderLayer>(config)));
    norm_ = &add_child("norm", make_unique<RmsNorm>(config.hidden_size, config.rms_norm_eps));
    frequencies_ = add_buffer("rotary_emb.inv_freq", {rope_frequencies(config), /*keep_dtype=*/true});
  }

  Tensors forward(const Tensors& inputs) override {
    at::Tensor x = embed_(inputs)[0];
    const int64_t length = x.size(1);
    const at::Tensor positions = at::arange(length, at::kLong).to(at::kFloat).view({1, length, 1});
    const at::Tensor angles = positions * buffers()[frequencies_].second.value;
    const at::Tensor both = at::cat({angles, angles}, -1);
    const at::Tensor cos = both.cos().to(x.scalar_type()), sin = both.sin().to(x.scalar_type());
    for (Module* layer : layers_) x = (*layer)(Tensors{x, cos, sin})[0];
    return {(*norm_)(x)};
  }

  const ParameterSlot& embedding() const { return embed_.weight(); }

 private:
  Embedding& embed_;
  std::vector<Module*> layers_;
  Module* norm_ = nullptr;
  size_t frequencies_ = 0;
};

class LlamaForCausalLM : public Module {
 public:
  explicit LlamaForCausalLM(const LlamaConfig& config)
      : Module("LlamaForCausalLM"), model_(add_child("model", make_unique<LlamaModel>(config))) {
    head_ = &add_child("lm_head", config.tie_word_embeddings ? make_unique<Linear>(model_.embedding())
                                                             : projection(config, config.hidden_size, config.vocab_size, false));
  }

  Tensors forward(const Tensors& inputs) override { return (*head_)(model_(inputs)); }

 private:
  LlamaModel& model_;
  Module* head_;
};

}  // namespace

std::unique_ptr<Module> make_llama(const LlamaConfig& config) { return make_unique<LlamaForCausalLM>(config); }

}  // namespace fsdpctl::train
