#include <fmt/format.h>

#include <memory>

#include "lib/base/shell_quoted.h"
#include "tools/beside.h"
#include "tools/command_line.h"
#include "tools/engine_session.h"
#include "tools/open_input.h"
#include "tools/output.h"

namespace fsdpctl {
namespace {

struct Options {
  std::string input;
  int64_t world_size = 0;
  OutputOptions output;
};

void check_format(const Options& options, const Checkpoint& checkpoint, const Format& format) {
  if (format.capabilities().world_size) return;
  throw Error(Exit::refused, "this format has no world size")
      .at(options.input)
      .found_only(checkpoint.format)
      .try_(fmt::format("fsdpctl convert {} -o {} --to dcp --world-size {}", shell_quoted(options.input),
                        shell_quoted(options.output.path), options.world_size));
}

Exit run_reshard(const Options& options, const Context& context) {
  FindingSink sink;
  Opened opened = open_input(context, options.input, sink, options.output.follow_links);
  check_format(options, opened.checkpoint, *opened.format);
  check_output(options.output, options.input, *opened.format, context);
  if (!options.output.dry_run) resolve_pieces(opened.checkpoint, context.printer.globals().threads, sink);
  report_beside(opened, sink);
  context.printer.remarks(sink.all());
  Job job;
  job.changes = changes_of_beside(opened);
  job.verb = "reshard";
  job.checkpoint = &opened.checkpoint;
  job.format = opened.format;
  job.world_size = options.world_size;
  job.arguments = "reshard";
  return write_output(job, options.output, context);
}

Run declare(CLI::App& app, const FormatList&) {
  auto options = std::make_shared<Options>();
  options->output.keeps_format = true;
  app.add_option("CKPT", options->input, "checkpoint directory, or a run directory (its newest complete step)")
      ->required();
  add_value(
      app, "--world-size",
      [options](const std::string& text) { options->world_size = parse_world_size("--world-size", text); }, "N",
      "number of ranks to write for")
      ->required();
  add_output_flags(app, options->output);
  return [options](const Context& context) {
    return with_verify_hint(options->input, [&] { return run_reshard(*options, context); });
  };
}

}  // namespace

Command reshard_command() {
  return {"reshard",
          "write a checkpoint again for another number of ranks",
          "CKPT -o OUT --world-size N",
          "Writes a checkpoint again, in its own format, for another number of ranks: any number, also one larger than "
          "a tensor's "
          "dimension. Nothing is cast, renamed or dropped.\n\n"
          "Parameters, and optimizer fields of their shape, are cut as PyTorch's FSDP2 does (torch.chunk), along the "
          "dimension in which the "
          "source cuts them, else along the first. Buffers, scalars and other state are written once, on the rank with "
          "the fewest bytes.\n\n"
          "OUT appears only when it is complete: it was synced, opened again, read back and compared with the source. "
          "An interrupted run "
          "leaves a directory OUT.partial-..., which the same command continues.",
          {{"fsdpctl reshard step-1200 -o step-1200-w6 --world-size 6", "to go on with six GPUs"},
           {"fsdpctl reshard step-1200 -o step-1200-w6 --world-size 6 --dry-run", "how large would it be?"}},
          {{0, "written and proven equal"},
           {2, "used wrongly; output exists"},
           {3, "source is damaged or incomplete"},
           {4, "refused: the format has no world size"},
           {5, "not recognised, not supported, or unsafe content"},
           {6, "could not finish: not found, input or output error, no space"},
           {130, "interrupted (143 by SIGTERM); nothing was published"}},
          declare};
}

}  // namespace fsdpctl
