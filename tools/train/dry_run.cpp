#include "tools/train/dry_run.h"

#include <fmt/format.h>

#include <optional>

#include "lib/base/file.h"
#include "lib/train/run_setup.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

// Of the file system that checkpoints will be on; nothing where none are written.
std::optional<uint64_t> space_for(const std::string& directory) {
  if (directory.empty()) return std::nullopt;
  const bool there = stat_path(directory).kind == FileKind::directory;
  return free_bytes(there ? directory : parent_path(directory));
}

uint64_t saves_kept(const train::TrainConfig& config) {
  const uint64_t steps = config.training.steps, interval = config.checkpoint.interval;
  const uint64_t all = interval == 0 ? 1 : (steps + interval - 1) / interval;
  // The one before goes only when the new one is there.
  return config.checkpoint.keep == 0 ? all : std::min(all, config.checkpoint.keep + 1);
}

}  // namespace

Exit print_forecast(const train::TrainConfig& config, int world_size, const Context& context) {
  const train::Forecast f = train::forecast(config);
  train::check_tokens(config, train::vocabulary_of(train::model_config_of(config)));
  const uint64_t samples = train::training_batches(config).samples_per_epoch();
  const uint64_t in_step = config.training.micro_batches * static_cast<uint64_t>(config.data.batches.micro_batch_size);
  const double epochs = static_cast<double>(config.training.steps * in_step) / static_cast<double>(samples);
  const std::optional<uint64_t> space = space_for(config.checkpoint.directory);
  const uint64_t kept = space ? saves_kept(config) : 0;
  Printer& printer = context.printer;
  printer.text(fmt::format("{}: nothing was started or written", printer.paint(Style::strong, visible(config.path))));
  printer.row("parameters", count_text(f.parameters));
  printer.row("ranks", fmt::format("{} shards, {}", config.sharding.shards, count_text(static_cast<uint64_t>(config.sharding.replicas), "replica")));
  printer.row("of a rank", fmt::format("{}, and activations: parameters {}, gathered {}, gradients {}, optimizer {}", size_text(f.rank_bytes()),
                                       size_text(f.parameter_bytes), size_text(f.gathered_bytes), size_text(f.gradient_bytes),
                                       size_text(f.optimizer_bytes)));
  printer.row("steps", fmt::format("{} of {}, {:.2f} epochs of {}", count_text(config.training.steps), count_text(f.tokens_per_step, "token"), epochs,
                                   count_text(samples, "sequence")));
  if (space) {
    printer.row("checkpoint", fmt::format("{}, at most {} of them at a time: {}; free: {}", size_text(f.checkpoint_bytes), kept,
                                          size_text(kept * f.checkpoint_bytes), size_text(*space)));
    if (*space < kept * f.checkpoint_bytes) {
      printer.remark(warning("not enough space for the checkpoints").at(config.checkpoint.directory)
                         .saw(size_text(kept * f.checkpoint_bytes), size_text(*space)));
    }
  }
  printer.record("summary", {{"schema_version", 1},
                             {"dry_run", true},
                             {"world_size", world_size},
                             {"parameters", f.parameters},
                             {"rank_bytes", f.rank_bytes()},
                             {"parameter_bytes", f.parameter_bytes},
                             {"gathered_bytes", f.gathered_bytes},
                             {"gradient_bytes", f.gradient_bytes},
                             {"optimizer_bytes", f.optimizer_bytes},
                             {"steps", config.training.steps},
                             {"tokens_per_step", f.tokens_per_step},
                             {"sequences", samples},
                             {"checkpoint_bytes", f.checkpoint_bytes},
                             {"free_bytes", space ? Json(*space) : Json()}});
  return Exit::ok;
}

}  // namespace fsdpctl
