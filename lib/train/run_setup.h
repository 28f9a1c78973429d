// From a config to the parts of a run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/ckpt/format.h"
#include "lib/train/config/train_config.h"
#include "lib/train/data/batches.h"
#include "lib/train/fsdp_model.h"
#include "lib/train/fsdp_optimizer.h"
#include "lib/train/models/model_config.h"

namespace fsdpctl::train {

ModelConfig model_config_of(const TrainConfig& config);
FsdpOptions fsdp_options_of(const TrainConfig& config, const ModelConfig& model);
FSDPadaptOptions optimizer_options_of(const TrainConfig& config);

// The batches of data.files or validation.files. Those of validation are never shuffled.
Batches training_batches(const TrainConfig& config);
Batches validation_batches(const TrainConfig& config);
// Reads all files: Error(usage) for ids that the model does not know.
void check_tokens(const TrainConfig& config, int64_t vocabulary);

// Fills a model with model.weights, or where there are none with seeded values.
void set_first_values(FsdpModel& model, const TrainConfig& config, const FormatList& formats);

// What a rank of a run needs, foretold without making it. Bytes; activations are not known.
struct Forecast {
  uint64_t parameters = 0;       // of the whole model
  uint64_t parameter_bytes = 0;  // of a rank: its shard, in the model's dtype
  uint64_t optimizer_bytes = 0;  // its masters and moments
  uint64_t gradient_bytes = 0;   // of its shard, in float32
  uint64_t gathered_bytes = 0;   // of the two largest units, whole, with the gradients of one
  uint64_t checkpoint_bytes = 0;
  uint64_t tokens_per_step = 0;
  uint64_t rank_bytes() const { return parameter_bytes + optimizer_bytes + gradient_bytes + gathered_bytes; }
};
// `config` fits its ranks (fit_to_world).
Forecast forecast(const TrainConfig& config);

}  // namespace fsdpctl::train
