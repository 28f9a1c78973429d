#include "tools/inspect_command.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "lib/base/checksum.h"
#include "lib/base/parallel.h"
#include "lib/ckpt/select.h"
#include "lib/ckpt/tiling.h"
#include "lib/ckpt/verify.h"
#include "tools/beside.h"
#include "tools/command_line.h"
#include "tools/engine_session.h"

namespace fsdpctl {
namespace {

std::vector<TensorIndex> wanted_tensors(const Inspected& inspected, const InspectOptions& options) {
  std::vector<TensorIndex> wanted;
  for (const LeafInfo& leaf : inspected.parts.leaves) {
    if (leaf.tensor != kNoTensor && name_matches(options, leaf)) wanted.push_back(leaf.tensor);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

void sum_data(Inspected& inspected, const InspectOptions& options, Printer& printer) {
  EngineSession session(printer, "inspect");
  Checkpoint& checkpoint = inspected.opened.checkpoint;
  FindingSink sink;
  resolve_pieces(checkpoint, session.options().threads, sink);
  const std::vector<TensorIndex> wanted = wanted_tensors(inspected, options);
  if (options.fingerprint) {
    // A checkpoint's fingerprint needs every tensor, inert objects' storages included.
    const bool all = options.name.empty();
    if (all || !wanted.empty()) {
      inspected.sums =
          fingerprint(checkpoint, all ? std::span<const TensorIndex>() : std::span(wanted), session.options());
    }
    if (all) inspected.fingerprint = checkpoint_fingerprint(checkpoint, inspected.sums);
  }
  if (options.sha256) {
    inspected.sha256.resize(checkpoint.tensors.size());
    for (const TensorIndex t : wanted) {
      Sha256 sum;
      read_tensor(checkpoint, t, session.options(),
                  [&](uint64_t, std::span<const std::byte> bytes) { sum.update(bytes); });
      inspected.sha256[t] = sum.hex();
    }
  }
}

bool matches_nothing(const Inspected& inspected, const InspectOptions& options) {
  const std::vector<LeafInfo>& leaves = inspected.parts.leaves;
  return std::none_of(leaves.begin(), leaves.end(), [&](const LeafInfo& leaf) { return name_matches(options, leaf); });
}

Exit inspect_one(const std::string& path, const InspectOptions& options, const Context& context) {
  Inspected inspected;
  inspected.path = path;
  // Not strict: what can be read of a damaged checkpoint is shown, with what is wrong.
  FindingSink sink(false);
  inspected.opened = open_checkpoint(context.formats, path, sink, {options.follow_links});
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  parallel_for(2, 2, [&](size_t i) {  // both only read it
    if (i == 0) {
      check_tiling(checkpoint, sink);
    } else {
      inspected.parts = find_parts(checkpoint);
    }
  });
  {
    EngineOptions quiet;
    quiet.threads = 1;
    inspected.overview = make_overview(inspected.opened, inspected.parts, quiet, sink);
  }
  report_beside(inspected.opened, sink);
  inspected.findings = sink.all();
  if (options.fingerprint || options.sha256) sum_data(inspected, options, context.printer);
  print_overview(inspected, context.printer);
  context.printer.findings(inspected.findings, path);
  if (!options.name.empty() && matches_nothing(inspected, options)) {
    context.printer.remark(warning("nothing matches --name").at(path).found_only(options.name));
  }
  print_listings(inspected, options, context.printer);
  return exit_code(inspected.findings);
}

Run declare(CLI::App& app, const FormatList&) {
  auto options = std::make_shared<InspectOptions>();
  app.add_option("CKPT", options->paths, "checkpoint directory or file, or a run directory (its newest complete step)")
      ->required();
  app.add_flag("--tensors", options->tensors, "list tensors: key, dtype, shape, placement");
  app.add_flag("--pieces", options->pieces, "list pieces: where each box of each tensor lies");
  app.add_flag("--groups", options->groups, "list optimizer param groups with their hyperparameters and parameters");
  app.add_flag("--extra", options->extra, "list everything besides the tensors of model and optimizer");
  app.add_option("--name", options->name, "only what matches, by key or FQN (* matches dots, too); alone: --tensors")->type_name("GLOB");
  app.add_flag("--fingerprint", options->fingerprint, "read the data: CRC-64/XZ of each tensor and of the checkpoint");
  app.add_flag("--sha256", options->sha256, "read the data: SHA-256 of each tensor's row-major little-endian bytes");
  app.add_flag("--follow-links", options->follow_links, "follow symbolic links that lead out of the checkpoint");
  return [options](const Context& context) {
    const bool lists = options->tensors || options->pieces || options->groups || options->extra;
    options->tensors = options->tensors || (!lists && !options->name.empty());
    return run_inspect(*options, context);
  };
}

}  // namespace

bool name_matches(const InspectOptions& options, const LeafInfo& leaf) {
  return options.name.empty() || glob_match(options.name, leaf.path) ||
         (!leaf.fqn.empty() && glob_match(options.name, leaf.fqn));
}

Exit run_inspect(const InspectOptions& options, const Context& context) {
  Exit result = Exit::ok;
  uint64_t failed = 0;
  bool printed = false;
  for (size_t i = 0; i < options.paths.size(); ++i) {
    if (printed) context.printer.text("");
    Exit code = Exit::ok;
    try {
      code = inspect_one(options.paths[i], options, context);
      printed = true;
    } catch (const Error& e) {
      if (e.code() == Exit::interrupted || e.code() == Exit::terminated || options.paths.size() == 1) throw;
      context.printer.error(e);
      code = e.code();
    }
    failed += code != Exit::ok ? 1 : 0;
    result = worse(result, code);
  }
  context.printer.record("summary", {{"schema_version", 1}, {"checkpoints", options.paths.size()}, {"failed", failed}});
  return result;
}

Command inspect_command() {
  return {"inspect",
          "show what a checkpoint is and what is in it",
          "CKPT...",
          "Shows what a checkpoint is, whether it is whole, and what is in it: format, world size and placement, "
          "parameters and bytes "
          "for each dtype, optimizer, loss scaler, schedulers and other state. Reads metadata only, unless "
          "--fingerprint or --sha256 ask "
          "for more, and executes nothing.\n\n"
          "\"Whole\" means that every file is there, in its size, and that every element of every tensor is covered "
          "exactly once. "
          "Whether the bytes are the right ones is what verify --data answers.",
          {{"fsdpctl inspect step-1200", "the overview"},
           {"fsdpctl inspect step-1200 --tensors --name '*.bias'", "the biases, and their moments in the optimizer"},
           {"fsdpctl inspect --json --tensors --sha256 model.safetensors", "for scripts"}},
          {{0, "opened, and whole by its metadata"},
           {2, "used wrongly"},
           {3, "damaged or incomplete"},
           {4, "refused: ambiguous which checkpoint is meant"},
           {5, "not recognised, not supported, or unsafe content"},
           {6, "not found, or could not be read"}},
          declare};
}

}  // namespace fsdpctl
