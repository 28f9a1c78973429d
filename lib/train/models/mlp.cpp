#include "lib/train/models/mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>

#include <vector>

#include "lib/train/models/layers.h"

namespace fsdpctl::train {
namespace {

class MlpLayer : public Module {
 public:
  explicit MlpLayer(const MlpConfig& config)
      : Module("MlpLayer"),
        up_(add_child("up", std::make_unique<Linear>(config.hidden_size, config.intermediate_size, true))),
        down_(add_child("down", std::make_unique<Linear>(config.intermediate_size, config.hidden_size, true))),
        dropout_(add_child("dropout", std::make_unique<Dropout>(config.dropout))) {}

  Tensors forward(const Tensors& inputs) override {
    return {inputs[0] + dropout_(down_(at::gelu(up_(inputs[0]))))};
  }

 private:
  Module &up_, &down_, &dropout_;
};

class Mlp : public Module {
 public:
  explicit Mlp(const MlpConfig& config)
      : Module("Mlp"),
        embed_(add_child("embed", std::make_unique<Embedding>(config.vocab_size, config.hidden_size, Initial{Initial::normal, 1}))) {
    ModuleList& layers = add_child("layers", std::make_unique<ModuleList>());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers_.push_back(&layers.add(std::make_unique<MlpLayer>(config)));
    auto head = config.tie_word_embeddings ? std::make_unique<Linear>(embed_.weight())
                                           : std::make_unique<Linear>(config.hidden_size, config.vocab_size, false);
    head_ = &add_child("head", std::move(head));
  }

  Tensors forward(const Tensors& inputs) override {
    Tensors x = embed_(inputs);
    for (Module* layer : layers_) x = (*layer)(x);
    return (*head_)(x);
  }

 private:
  Embedding& embed_;
  std::vector<Module*> layers_;
  Module* head_;
};

}  // namespace

std::unique_ptr<Module> make_mlp(const MlpConfig& config) { return std::make_unique<Mlp>(config); }

}  // namespace fsdpctl::train
