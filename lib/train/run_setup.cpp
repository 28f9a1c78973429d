#include "lib/train/run_setup.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lib/train/checkpoint_weights.h"

namespace fsdpctl::train {

ModelConfig model_config_of(const TrainConfig& config) {
  return parse_model_config(config.model.config.dump(-1, ' ', false, Json::error_handler_t::replace), config.model.config_path);
}

FsdpOptions fsdp_options_of(const TrainConfig& config, const ModelConfig& model) {
  UnitSettings settings;
  settings.precision = {config.param_dtype, config.reduce_dtype, config.buffer_dtype};
  FsdpOptions options;
  options.placement = config.sharding.placement;
  options.root = settings;
  settings.replay = config.sharding.activation_checkpointing;
  options.policy = wrap_kinds(config.sharding.wrap.value_or(std::vector<std::string>{layer_kind(model)}), settings);
  options.offload_parameters = config.sharding.offload_parameters;
  options.prefetch = config.sharding.prefetch;
  return options;
}

FSDPadaptOptions optimizer_options_of(const TrainConfig& config) {
  FSDPadaptOptions options;
  options.optimizer = config.optimizer;
  options.max_norm = config.max_norm;
  options.schedule = config.schedule;
  if (config.param_dtype == DType::float16) options.scaler = config.loss_scale;
  return options;
}

namespace {

std::vector<TokenFile> open_files(const TrainConfig& config, const std::vector<std::string>& names) {
  std::vector<TokenFile> files;
  for (const std::string& name : names) {
    const std::string path = input_path(config, name);
    files.push_back(config.data.kind == DataKind::text ? TokenFile::open_text(path) : TokenFile::open_tokens(path, config.data.dtype));
  }
  return files;
}

}  // namespace

Batches training_batches(const TrainConfig& config) { return {open_files(config, config.data.files), config.data.batches}; }

Batches validation_batches(const TrainConfig& config) {
  BatchOptions options = config.data.batches;
  options.shuffle = false;
  return {open_files(config, config.validation.files), options};
}

void check_tokens(const TrainConfig& config, int64_t vocabulary) {
  if (config.data.kind == DataKind::text && vocabulary >= 256) return;   // every byte is below
  for (const std::vector<std::string>* names : {&config.data.files, &config.validation.files}) {
    for (const TokenFile& file : open_files(config, *names)) file.check(vocabulary);
  }
}

void set_first_values(FsdpModel& model, const TrainConfig& config, const FormatList& formats) {
  if (config.model.weights.empty()) return model.initialize(config.training.seed);
  FindingSink sink;
  Opened opened = open_checkpoint(formats, input_path(config, config.model.weights), sink);
  resolve_pieces(opened.checkpoint, 1, sink);
  model.set_values(checkpoint_weights(opened.checkpoint, model.root()));
}

// ---- forecast

namespace {

// Parameters of each unit, and the rest last.
std::vector<uint64_t> unit_sizes(Module& root, const FsdpOptions& options) {
  std::vector<uint64_t> sizes{0};
  std::map<const Parameter*, bool> seen;
  const std::function<void(Module&, size_t)> visit = [&](Module& module, size_t unit) {
    if (&module != &root && options.policy(module)) {
      unit = sizes.size();
      sizes.push_back(0);
    }
    for (const auto& [name, slot] : module.parameters()) {
      if (!std::exchange(seen[slot.get()], true)) sizes[unit] += element_count(slot->shape);
    }
    for (const auto& [name, child] : module.children()) visit(*child, unit);
  };
  visit(root, 0);
  return sizes;
}

}  // namespace

Forecast forecast(const TrainConfig& config) {
  const ModelConfig model = model_config_of(config);
  const std::unique_ptr<Module> root = make_model(model);
  std::vector<uint64_t> sizes = unit_sizes(*root, fsdp_options_of(config, model));
  const auto shards = static_cast<uint64_t>(config.sharding.shards);
  const uint64_t width = item_size(config.param_dtype);
  const auto moments = static_cast<uint64_t>(moment_count(config.optimizer.kind, config.optimizer.defaults));
  Forecast result;
  uint64_t shard = 0;
  for (const uint64_t size : sizes) {
    result.parameters += size;
    shard += (size + shards - 1) / shards;
  }
  std::sort(sizes.rbegin(), sizes.rend());
  const uint64_t second = sizes.size() > 1 && config.sharding.prefetch ? sizes[1] : 0;
  result.parameter_bytes = shard * width;
  result.optimizer_bytes = shard * 4 * (moments + (config.param_dtype == DType::float32 ? 0 : 1));
  result.gradient_bytes = shard * 4;
  if (shards > 1 || config.sharding.offload_parameters) result.gathered_bytes = (sizes[0] + second) * width;
  result.gathered_bytes += sizes[0] * width;
  result.checkpoint_bytes = result.parameters * 4 * (1 + moments);
  result.tokens_per_step = config.training.micro_batches * static_cast<uint64_t>(config.data.batches.micro_batch_size) *
                           static_cast<uint64_t>(config.data.batches.sequence_length);
  return result;
}

}  // namespace fsdpctl::train
