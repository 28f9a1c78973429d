// What a training run does: the config of `fsdpctl train`, a file of JSON with comments. Free of LibTorch. train_config.cpp has
// the table of all keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/train/config/config_table.h"
#include "lib/train/data/batches.h"
#include "lib/train/grad_scaler.h"
#include "lib/train/lr_schedule.h"
#include "lib/train/param_groups.h"

namespace fsdpctl::train {

enum class DataKind : uint8_t { text, tokens };

struct TrainConfig {
  std::string path;               // of the file, for messages; its directory is where relative paths of inputs begin

  struct Model {
    Json config;                  // config.json's content; a path in the file is replaced by it
    std::string config_path;      // where it was read, for messages
    std::string weights;          // a checkpoint in any format; empty: seeded values
  } model;

  struct Data {
    DataKind kind = DataKind::text;
    std::vector<std::string> files;
    std::optional<DType> dtype;   // of ids in files without a header
    BatchOptions batches;
  } data;

  struct Validation {
    uint64_t interval = 0;        // steps; 0: never
    std::vector<std::string> files;
    uint64_t batches = 8;
  } validation;

  OptimizerOptions optimizer;
  double max_norm = 1;
  LrScheduleOptions schedule;     // total_steps: 0 in the file stands for training.steps
  DType param_dtype = DType::bfloat16, reduce_dtype = DType::float32, buffer_dtype = DType::float32;
  GradScalerOptions loss_scale;   // of float16; its dtype is param_dtype

  struct Sharding {
    ShardPlacement placement = ShardPlacement::flat;
    int replicas = 1;
    int shards = 0;               // 0: as many as there are ranks for each replica
    bool offload_parameters = false;
    bool prefetch = true;
    bool activation_checkpointing = false;
    bool accumulate_locally = false;
    std::optional<std::vector<std::string>> wrap;   // kinds of modules; none: the model's layers
  } sharding;

  struct Training {
    uint64_t steps = 0;
    uint64_t micro_batches = 0;   // of all ranks in a step; 0: one for each
    uint64_t seed = 0;
    uint64_t max_consecutive_skips = 20;   // 0: no end
    int threads = 0;              // of each rank; 0: the machine's, shared by its ranks
    double timeout = 600;         // seconds that ranks wait for each other
  } training;

  struct Saving {
    std::string directory;        // empty: nothing is saved
    uint64_t interval = 0;        // steps; 0: only at the end
    uint64_t keep = 0;            // newest ones; 0: all
    std::string format = "dcp";
    bool background = false;
  } checkpoint;

  struct Logging {
    uint64_t interval = 1;        // steps between lines on the terminal
    std::string metrics;          // a file; empty: metrics.jsonl in checkpoint.directory
  } logging;
};

// Reads the file, then `assignments` ("optimizer.lr=1e-4") over it. Error(usage) names file and key of what is unknown, of a wrong
// type, impossible or missing; Error(failed) where a file cannot be read.
TrainConfig read_train_config(const std::string& path, const std::vector<std::string>& assignments = {});
TrainConfig parse_train_config(std::string_view text, const std::string& path, const std::vector<std::string>& assignments = {});

// With every default. The text is a config that does the same from the same directory, each key with a comment.
Json effective_config(const TrainConfig& config);
std::string explained_config(const TrainConfig& config);

// The path of an input as the file means it.
std::string input_path(const TrainConfig& config, const std::string& path);

// Names of the keys of which a change is treated so when a run is resumed.
std::vector<std::string> keys_of(Resumed resumed);

// Sets what the number of ranks decides: sharding.shards, training.micro_batches. Error(usage) where the config is for another one.
void fit_to_world(TrainConfig& config, int world_size);

}  // namespace fsdpctl::train
