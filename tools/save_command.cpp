#include <fmt/format.h>

#include <array>
#include <memory>
#include <span>

#include "lib/base/file.h"
#include "lib/ckpt/first_state.h"
#include "tools/beside.h"
#include "tools/command_line.h"
#include "tools/engine_session.h"
#include "tools/format_option.h"
#include "tools/open_input.h"
#include "tools/output.h"
#include "tools/start_training.h"
#include "tools/train_command.h"

namespace fsdpctl {
namespace {

struct Options {
  std::string input;
  const Format* format = nullptr;
  std::optional<int64_t> world_size;
  std::vector<std::string> assignments;
  OutputOptions output;
};

// Whether this is a config: text that begins as JSON with comments does. No checkpoint's file does.
bool is_config(const std::string& path) {
  if (stat_path(path).kind != FileKind::file) return false;
  std::array<char, 4096> head{};
  const size_t size = FileHandle::open_read(path).read_some(0, std::as_writable_bytes(std::span(head)));
  const std::string_view text(head.data(), size);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != text.npos && (text[first] == '{' || text.substr(first, 2) == "//" || text.substr(first, 2) == "/*");
}

Exit save_weights(const Options& options, const Context& context) {
  if (!options.assignments.empty()) throw Error(Exit::usage, "weights have no config to set keys of").key("--set").at(options.input);
  check_output(options.output, options.input, *options.format, context);
  FindingSink sink;
  Opened opened = open_input(context, options.input, sink, options.output.follow_links);
  if (!options.output.dry_run) resolve_pieces(opened.checkpoint, context.printer.globals().threads, sink);
  report_beside(opened, sink);
  context.printer.remarks(sink.all());
  Job job;
  job.changes = changes_of_beside(opened);
  const Checkpoint state = first_training_state(opened.checkpoint, job.changes);
  job.verb = "save";
  job.checkpoint = &state;
  job.format = options.format;
  job.world_size = options.format->capabilities().world_size ? options.world_size.value_or(1) : 1;
  job.arguments = "save";
  return write_output(job, options.output, context);
}

// What has a meaning for weights alone.
void refuse_for_config(bool given, const char* flag, const Options& options) {
  if (given) throw Error(Exit::usage, "this option is for weights, not for a config").key(flag).at(options.input);
}

Exit save_config(const Options& options, const Context& context) {
  refuse_for_config(options.output.force, "--force", options);
  refuse_for_config(options.output.dry_run, "--dry-run", options);
  refuse_for_config(options.output.no_read_back, "--no-read-back", options);
  refuse_for_config(options.output.worker.has_value(), "--worker", options);
  check_output(options.output, options.input, *options.format, context);
  train::TrainConfig config = train::read_train_config(options.input, options.assignments);
  if (context.training != nullptr) {
    return context.training->save({options.input, options.assignments, options.output.path, options.format}, std::move(config), context);
  }
  std::optional<int> ranks;
  if (options.world_size) ranks = parse_nproc("--world-size", std::to_string(*options.world_size));
  train::fit_to_world(config, ranks_to_be(ranks));
  return start_training(ranks, context);
}

Exit run_save(const Options& options, const Context& context) {
  if (options.world_size && !options.format->capabilities().world_size) {
    throw Error(Exit::usage, "this format has no world size").key("--world-size").found_only(fmt::format("--to {}", options.format->name()));
  }
  return is_config(options.input) ? save_config(options, context) : save_weights(options, context);
}

Run declare(CLI::App& app, const FormatList& formats) {
  auto options = std::make_shared<Options>();
  options->format = find_format(formats, "dcp");
  app.add_option("INPUT", options->input, "weights: a checkpoint of any format; or the config of a run")->required();
  add_value(
      app, "--to", [options, &formats](const std::string& text) { options->format = parse_format("--to", text, formats); },
      format_choices(formats), "format to write; default: dcp");
  add_value(
      app, "--world-size",
      [options](const std::string& text) { options->world_size = parse_world_size("--world-size", text); }, "N",
      "number of ranks to write for; default: 1. Of a config so many ranks are started");
  add_list(app, "--set", options->assignments, "KEY=VALUE", "of a config: as fsdpctl train --set");
  add_output_flags(app, options->output);
  return [options](const Context& context) {
    return with_verify_hint(options->input, [&] { return run_save(*options, context); });
  };
}

}  // namespace

Command save_command() {
  return {"save",
          "write the state that training begins with, from weights or from a config",
          "WEIGHTS|CONFIG -o OUT [--world-size N]",
          "From weights in any format: their FP32 masters, an optimizer without moments, step 0. What fsdpctl train --resume "
          "or PyTorch goes on with. Optimizer and other state of the source are left out and listed.\n\n"
          "From a config: the model with its first values (or model.weights), as fsdpctl train would begin. Needs LibTorch, as train does.\n\n"
          "OUT appears only when it is complete: it was synced, opened again, read back and compared.",
          {{"fsdpctl save model.safetensors -o step-0 --world-size 8", "fine-tuning begins with these weights"},
           {"fsdpctl save samples/llama-tiny.json -o step-0", "first values by the config's seed"}},
          {{0, "written and proven equal"},
           {2, "used wrongly; output exists"},
           {3, "source is damaged or incomplete"},
           {4, "refused: there is no model, or the format cannot carry it"},
           {5, "not recognised, not supported, or unsafe content; for a config: fsdpctl-train is missing"},
           {6, "could not finish: not found, input or output error, no space"},
           {130, "interrupted (143 by SIGTERM); nothing was published"}},
          declare};
}

}  // namespace fsdpctl
