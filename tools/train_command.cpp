#include "tools/train_command.h"

#include <memory>

#include "tools/command_line.h"
#include "tools/format_option.h"
#include "tools/start_training.h"

namespace fsdpctl {
namespace {

Exit run_train(const TrainOptions& options, const Context& context) {
  train::TrainConfig config = train::read_train_config(options.config, options.assignments);
  parse_format("checkpoint.format", config.checkpoint.format, context.formats);
  if (options.print_config) {
    context.printer.raw_out(train::explained_config(config));
    return Exit::ok;
  }
  if (context.training != nullptr) return context.training->train(options, std::move(config), context);
  train::fit_to_world(config, ranks_to_be(options.nproc));
  return start_training(options.dry_run ? std::nullopt : options.nproc, context);
}

Run declare(CLI::App& app, const FormatList&) {
  auto options = std::make_shared<TrainOptions>();
  app.add_option("CONFIG", options->config, "a file of JSON with comments; --print-config explains every key")->required();
  add_value(
      app, "--resume", [options](const std::string& text) { options->resume = text; }, "CKPT",
      "continue a checkpoint of any format and world size; latest: the newest complete one in checkpoint.directory");
  add_value(
      app, "--nproc", [options](const std::string& text) { options->nproc = parse_nproc("--nproc", text); }, "N",
      "start N ranks on this machine; without it: the rank that torchrun, SLURM or Open MPI made of this process, or one");
  add_list(app, "--set", options->assignments, "KEY=VALUE", "instead of what CONFIG says, such as optimizer.lr=1e-4; may be given several times");
  add_value(
      app, "--device", [options](const std::string& text) { options->device = text; }, "cpu|cuda", "where ranks compute; default: cpu");
  app.add_flag("--allow-partial", options->allow_partial,
               "--resume: what the checkpoint lacks starts anew (moments, schedule, loss scale, position in the data)");
  app.add_flag("--masters-from-model", options->masters_from_model,
               "--resume: widen 16-bit weights where there are no FP32 ones");
  app.add_flag("--other-loss-scale", options->other_loss_scale,
               "--resume: take the loss scale although it is configured otherwise now");
  app.add_flag("--print-config", options->print_config, "print CONFIG with every default and what it means, and end");
  app.add_flag("--dry-run", options->dry_run, "print parameters, memory of a rank, steps, size of a checkpoint and free space, and end");
  return [options](const Context& context) { return run_train(*options, context); };
}

}  // namespace

Command train_command() {
  return {"train",
          "train a model on one or more ranks, sharded as PyTorch's FSDP does",
          "CONFIG [--nproc N] [--resume CKPT|latest]",
          "Trains a model in mixed precision with its parameters, gradients and optimizer state sharded over ranks, and saves "
          "checkpoints that fsdpctl and PyTorch read. Needs LibTorch, and the program fsdpctl-train that was built with it.\n\n"
          "One line for each step goes to stdout, and into metrics.jsonl in checkpoint.directory. A checkpoint appears there only when "
          "it is complete. On SIGTERM or SIGINT the run saves after the step under way and ends; a second one ends it at once.\n\n"
          "A run that is resumed on the same number of ranks gives the same bits as one that was never interrupted; on another number "
          "the state is the same, and what follows differs by rounding.",
          {{"fsdpctl train samples/llama-tiny.json --nproc 2", "two ranks on this machine"},
           {"fsdpctl train run.json --nproc 4 --resume latest", "go on, also with another number of ranks"},
           {"fsdpctl train run.json --set optimizer.lr=1e-4 --print-config", "what would hold"},
           {"torchrun --nproc-per-node 8 --no-python fsdpctl train run.json", "ranks of another launcher"}},
          {{0, "trained to the last step"},
           {2, "used wrongly: flags, config, data, output exists"},
           {3, "the checkpoint to resume is damaged or incomplete"},
           {4, "refused: the checkpoint is of another model or configuration, or lacks state"},
           {5, "fsdpctl-train or the device is not there, or the model is not supported"},
           {6, "could not finish: another rank failed, input or output error, no space, too many skipped steps"},
           {130, "interrupted (143 by SIGTERM), after a save"}},
          declare};
}

}  // namespace fsdpctl
