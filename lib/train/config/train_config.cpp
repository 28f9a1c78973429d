#include "lib/train/config/train_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "lib/base/file.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kLargestFile = 1 << 20;
constexpr int64_t kMostRanks = 1 << 20;
constexpr Range kNotNegative{0};
constexpr Range kPositive{0, 1e300, true};
constexpr Range kDecay{0, 0.9999999999};

const std::vector<std::pair<std::string, DType>> kFloats = {
    {"float32", DType::float32}, {"bfloat16", DType::bfloat16}, {"float16", DType::float16}};

// ---- keys that no general kind fits

ConfigKey model_key(TrainConfig::Model& model) {
  const auto read = [&model](const Json& json) {
    if (!json.is_string() && !json.is_object()) return false;
    model.config = json;
    return true;
  };
  return {"model.config", "a path or an object", "config.json of the model (model_type: llama, mistral, mlp), or its content here", read,
          [&model] { return model.config; }, Resumed::refused};
}

ConfigKey betas_key(GroupOptions& options) {
  const auto read = [&options](const Json& json) {
    if (!json.is_array() || json.size() != 2) return false;
    for (const Json& beta : json) {
      if (!beta.is_number() || beta < 0.0 || beta >= 1.0) return false;
    }
    options.beta1 = json[0].get<double>();
    options.beta2 = json[1].get<double>();
    return true;
  };
  return {"optimizer.betas", "two numbers from 0 to below 1", "decay of the moments of adamw and adam", read,
          [&options] { return Json{options.beta1, options.beta2}; }};
}

ConfigTable group_table(GroupRule& rule) {
  return {
      text_key("match", rule.match, "a glob over names of parameters"),
      number_or_null_key("lr", rule.lr, kNotNegative, ""),
      number_or_null_key("weight_decay", rule.weight_decay, kNotNegative, ""),
      number_or_null_key("beta1", rule.beta1, kDecay, ""),
      number_or_null_key("beta2", rule.beta2, kDecay, ""),
      number_or_null_key("eps", rule.eps, kNotNegative, ""),
      number_or_null_key("momentum", rule.momentum, kNotNegative, ""),
  };
}

ConfigKey groups_key(std::vector<GroupRule>& rules, const std::string& path) {
  const auto read = [&rules, &path](const Json& json) {
    if (!json.is_array()) return false;
    rules.clear();
    for (const Json& item : json) {
      const std::string name = fmt::format("optimizer.groups[{}]", rules.size());
      GroupRule& rule = rules.emplace_back();
      read_table(group_table(rule), item, path, name + ".");
      if (rule.match.empty()) throw Error(Exit::usage, "key missing in the config").at(path).key(name + ".match");
    }
    return true;
  };
  const auto write = [&rules] {
    Json json = Json::array();
    for (GroupRule& rule : rules) {
      Json group = write_table(group_table(rule));
      for (auto key = group.begin(); key != group.end();) key = key->is_null() ? group.erase(key) : std::next(key);
      json.push_back(std::move(group));
    }
    return json;
  };
  return {"optimizer.groups",
          "a list of objects with match and any of lr, weight_decay, beta1, beta2, eps, momentum",
          "other options for parameters by name; the first match counts", read, write, Resumed::refused};
}

ConfigKey dtype_key(std::optional<DType>& dtype) {
  const auto read = [&dtype](const Json& json) {
    dtype = json == "uint16" ? std::optional(DType::uint16) : json == "uint32" ? std::optional(DType::uint32) : std::nullopt;
    return dtype || json.is_null();
  };
  const auto write = [&dtype] { return dtype ? Json(dtype_name(*dtype)) : Json(); };
  return {"data.dtype", "uint16, uint32 or null", "of ids in token files without llm.c's header", read, write, Resumed::refused};
}

// ---- all keys: to add one, add a line

ConfigTable table_of(TrainConfig& c) {
  using enum Resumed;
  return {
      model_key(c.model),
      text_key("model.weights", c.model.weights, "a checkpoint to begin with, in any format; empty: seeded values", free),

      choice_key("data.kind", c.data.kind, {{"text", DataKind::text}, {"tokens", DataKind::tokens}},
                 "text: a token for each byte; tokens: files of ids", refused),
      texts_key("data.files", c.data.files, "relative to this file", refused),
      dtype_key(c.data.dtype),
      integer_key("data.sequence_length", c.data.batches.sequence_length, 1, 1 << 24, "tokens", refused),
      integer_key("data.micro_batch_size", c.data.batches.micro_batch_size, 1, 1 << 20, "sequences that a rank computes at a time", refused),
      flag_key("data.shuffle", c.data.batches.shuffle, "anew in each epoch", refused),
      integer_key("data.seed", c.data.batches.seed, 0, kMostInteger, "of the order", refused),

      integer_key("validation.interval", c.validation.interval, 0, kMostInteger, "steps; 0: never", free),
      texts_key("validation.files", c.validation.files, "as data.files", free),
      integer_key("validation.batches", c.validation.batches, 1, kMostInteger, "micro-batches, always the same ones", free),

      choice_key("optimizer.kind", c.optimizer.kind,
                 {{"adamw", OptimizerKind::adamw}, {"adam", OptimizerKind::adam}, {"sgd", OptimizerKind::sgd}}, "", refused),
      number_key("optimizer.lr", c.optimizer.defaults.lr, kNotNegative, "learning rate"),
      betas_key(c.optimizer.defaults),
      number_key("optimizer.eps", c.optimizer.defaults.eps, kNotNegative, "of adamw and adam"),
      number_key("optimizer.momentum", c.optimizer.defaults.momentum, kNotNegative, "of sgd"),
      number_key("optimizer.weight_decay", c.optimizer.defaults.weight_decay, kNotNegative, ""),
      flag_key("optimizer.decay_one_dimensional", c.optimizer.decay_one_dimensional, "weight decay for biases and norms, too", refused),
      groups_key(c.optimizer.rules, c.path),
      number_key("optimizer.max_norm", c.max_norm, kNotNegative, "to which all gradients together are clipped; 0: they are not"),

      choice_key("schedule.kind", c.schedule.kind,
                 {{"constant", LrScheduleOptions::Kind::constant},
                  {"linear", LrScheduleOptions::Kind::linear},
                  {"cosine", LrScheduleOptions::Kind::cosine}},
                 "of the learning rate"),
      integer_key("schedule.warmup_steps", c.schedule.warmup_steps, 0, kMostInteger, "up to optimizer.lr"),
      integer_key("schedule.total_steps", c.schedule.total_steps, 0, kMostInteger, "when min_lr is reached; 0: training.steps"),
      number_key("schedule.min_lr", c.schedule.min_lr, kNotNegative, ""),

      choice_key("precision.param_dtype", c.param_dtype, kFloats, "in which the model computes; masters are float32"),
      choice_key("precision.reduce_dtype", c.reduce_dtype, kFloats, "to which gradients are rounded before ranks sum them in float32"),
      choice_key("precision.buffer_dtype", c.buffer_dtype, kFloats, ""),

      number_key("loss_scale.initial_scale", c.loss_scale.initial_scale, kPositive, "these are of float16 alone"),
      number_key("loss_scale.growth_factor", c.loss_scale.growth_factor, {1, 1e300, true}, ""),
      number_key("loss_scale.backoff_factor", c.loss_scale.backoff_factor, {0, 1, true}, ""),
      integer_key("loss_scale.growth_interval", c.loss_scale.growth_interval, 1, kMostInteger, "steps in a row without overflow"),
      number_key("loss_scale.min_scale", c.loss_scale.min_scale, kNotNegative, "0: none"),
      number_key("loss_scale.max_scale", c.loss_scale.max_scale, kNotNegative, "0: none"),
      integer_key("loss_scale.hysteresis", c.loss_scale.hysteresis, 1, kMostInteger, "overflows before the scale falls"),

      choice_key("sharding.placement", c.sharding.placement,
                 {{"flat", ShardPlacement::flat}, {"per_parameter", ShardPlacement::per_parameter}}, "as FSDP1 or as FSDP2 cuts"),
      integer_key("sharding.replicas", c.sharding.replicas, 1, kMostRanks, "how often the parameters are held (HSDP)"),
      integer_key("sharding.shards", c.sharding.shards, 0, kMostRanks, "ranks that share them; 0: all that there are", free),
      flag_key("sharding.offload_parameters", c.sharding.offload_parameters, "shards and their gradients live in host memory"),
      flag_key("sharding.prefetch", c.sharding.prefetch, "the next unit is gathered while one computes", free),
      flag_key("sharding.activation_checkpointing", c.sharding.activation_checkpointing, "units compute again in backward"),
      flag_key("sharding.accumulate_locally", c.sharding.accumulate_locally,
               "ranks sum gradients once in a step, which rounds otherwise; false: after each micro-batch"),
      texts_or_null_key("sharding.wrap", c.sharding.wrap, "kinds of modules that become units; null: the model's layers"),

      integer_key("training.steps", c.training.steps, 1, kMostInteger, "of the whole run, resumed or not"),
      integer_key("training.micro_batches", c.training.micro_batches, 0, kMostInteger, "of all ranks in a step; 0: one for each", refused),
      integer_key("training.seed", c.training.seed, 0, kMostInteger, "of first values and dropout", refused),
      integer_key("training.max_consecutive_skips", c.training.max_consecutive_skips, 0, kMostInteger,
                  "steps skipped in a row before the run ends; 0: no limit", free),
      integer_key("training.threads", c.training.threads, 0, 1024, "of a rank; 0: the machine's, shared by its ranks", free),
      number_key("training.timeout", c.training.timeout, {0, 1e7, true}, "seconds that ranks wait for each other", free),

      text_key("checkpoint.directory", c.checkpoint.directory, "one step-N in it for each save; empty: nothing is saved", free),
      integer_key("checkpoint.interval", c.checkpoint.interval, 0, kMostInteger, "steps; 0: only at the end", free),
      integer_key("checkpoint.keep", c.checkpoint.keep, 0, kMostInteger, "newest ones; 0: all", free),
      text_key("checkpoint.format", c.checkpoint.format, "as fsdpctl convert --to", free),
      flag_key("checkpoint.background", c.checkpoint.background, "training goes on while it is written", free),

      integer_key("logging.interval", c.logging.interval, 1, kMostInteger, "steps between lines on the terminal", free),
      text_key("logging.metrics", c.logging.metrics, "a file of JSON lines; empty: metrics.jsonl in checkpoint.directory", free),
  };
}

// ---- what no single key shows

class Checks {
 public:
  explicit Checks(const TrainConfig& config) : config_(config) {}

  void given(bool holds, const char* key) const {
    if (!holds) throw Error(Exit::usage, "key missing in the config").at(config_.path).key(key);
  }
  void fits(bool holds, const char* key, std::string expected, std::string found) const {
    if (!holds) throw Error(Exit::usage, "value does not fit the rest of the config").at(config_.path).key(key).saw(std::move(expected), std::move(found));
  }

  void run() const {
    const TrainConfig& c = config_;
    given(!c.model.config.is_null(), "model.config");
    given(!c.data.files.empty(), "data.files");
    given(c.training.steps > 0, "training.steps");
    given(c.validation.interval == 0 || !c.validation.files.empty(), "validation.files");
    given(c.checkpoint.interval == 0 || !c.checkpoint.directory.empty(), "checkpoint.directory");
    fits(!c.data.dtype || c.data.kind == DataKind::tokens, "data.dtype", "null where data.kind is text", std::string(dtype_name(c.data.dtype.value_or(DType::uint8))));
    const bool decays = c.schedule.kind != LrScheduleOptions::Kind::constant;
    fits(!decays || c.schedule.warmup_steps < c.schedule.total_steps, "schedule.warmup_steps",
         fmt::format("fewer than the {} of the schedule", c.schedule.total_steps), std::to_string(c.schedule.warmup_steps));
    fits(c.loss_scale.max_scale == 0 || c.loss_scale.min_scale <= c.loss_scale.max_scale, "loss_scale.min_scale",
         fmt::format("at most max_scale ({})", c.loss_scale.max_scale), fmt::format("{}", c.loss_scale.min_scale));
    const bool scales = c.param_dtype == DType::float16 || c.loss_scale == GradScalerOptions{};
    fits(scales, "loss_scale", "the defaults unless precision.param_dtype is float16", "others");
    const uint64_t world = static_cast<uint64_t>(c.sharding.replicas) * static_cast<uint64_t>(std::max(1, c.sharding.shards));
    const bool divides = c.training.micro_batches == 0 || c.training.micro_batches % world == 0;
    fits(divides, "training.micro_batches", fmt::format("a multiple of the {} ranks", world), std::to_string(c.training.micro_batches));
  }

 private:
  const TrainConfig& config_;
};

std::string read_config_file(const std::string& path) {
  const FileStat stat = stat_path(path);
  if (stat.kind == FileKind::file && stat.size > kLargestFile) {
    throw Error(Exit::usage, "this is too large to be a config").at(path).saw("1 MiB at most", fmt::format("{} bytes", stat.size));
  }
  return read_text(path, kLargestFile);
}

// Reads the model's config where a path stands for it.
void read_model_config(TrainConfig& config) {
  config.model.config_path = config.path;
  if (!config.model.config.is_string()) return;
  config.model.config_path = input_path(config, config.model.config.get<std::string>());
  config.model.config = parse_config_text(read_config_file(config.model.config_path), config.model.config_path);
}

}  // namespace

TrainConfig parse_train_config(std::string_view text, const std::string& path, const std::vector<std::string>& assignments) {
  Json object = parse_config_text(text, path);
  if (object.is_object()) {
    for (const std::string& assignment : assignments) assign(object, assignment);
  }
  TrainConfig config;
  config.path = path;
  read_table(table_of(config), object, path);
  if (config.schedule.total_steps == 0) config.schedule.total_steps = config.training.steps;
  Checks(config).run();
  config.loss_scale.dtype = config.param_dtype;
  read_model_config(config);
  return config;
}

TrainConfig read_train_config(const std::string& path, const std::vector<std::string>& assignments) {
  return parse_train_config(read_config_file(path), path, assignments);
}

Json effective_config(const TrainConfig& config) {
  TrainConfig copy = config;
  return write_table(table_of(copy));
}

std::string explained_config(const TrainConfig& config) {
  TrainConfig copy = config;
  return explained_table(table_of(copy));
}

std::string input_path(const TrainConfig& config, const std::string& path) {
  return path.starts_with('/') ? path : join_path(parent_path(config.path), path);
}

std::vector<std::string> keys_of(Resumed resumed) {
  TrainConfig config;
  std::vector<std::string> names;
  for (const ConfigKey& key : table_of(config)) {
    if (key.resumed == resumed) names.push_back(key.name);
  }
  return names;
}

void fit_to_world(TrainConfig& config, int world_size) {
  TrainConfig::Sharding& sharding = config.sharding;
  const int64_t asked = static_cast<int64_t>(sharding.replicas) * std::max(1, sharding.shards);
  if (sharding.shards == 0 ? world_size % sharding.replicas != 0 : world_size != asked) {
    throw Error(Exit::usage, "the config is for another number of ranks")
        .at(config.path)
        .key(sharding.shards == 0 ? "sharding.replicas" : "sharding.shards")
        .saw(fmt::format("{}{} ranks", sharding.shards == 0 ? "a multiple of " : "", asked), std::to_string(world_size));
  }
  sharding.shards = world_size / sharding.replicas;
  const auto ranks = static_cast<uint64_t>(world_size);
  if (config.training.micro_batches == 0) config.training.micro_batches = ranks;
  if (config.training.micro_batches % ranks != 0) {
    throw Error(Exit::usage, "the config is for another number of ranks")
        .at(config.path)
        .key("training.micro_batches")
        .saw(fmt::format("a multiple of {} ranks", ranks), std::to_string(config.training.micro_batches));
  }
}

}  // namespace fsdpctl::train
