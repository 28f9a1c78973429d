#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lib/base/nearest_name.h"
#include "lib/base/shell_quoted.h"
#include "lib/ckpt/integer_ids.h"
#include "lib/ckpt/select.h"
#include "tools/beside.h"
#include "tools/command_line.h"
#include "tools/engine_session.h"
#include "tools/format_option.h"
#include "tools/open_input.h"
#include "tools/output.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

struct Options {
  std::string input;
  const Format* format = nullptr;
  std::optional<int64_t> world_size;
  std::optional<uint64_t> max_shard_bytes;
  std::string part = "all";
  std::string dtype;
  std::vector<std::string> rename, drop;
  bool strip_wrappers = false, fill_missing = false;
  OutputOptions output;
};

std::string joined(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

bool can_be_cast_to(DType dtype) {
  return dtype_kind(dtype) == DTypeKind::floating && dtype != DType::float4_e2m1fn_x2;
}

// One dtype has one name here, PyTorch's first; what else people call it is understood, and answered with that name.
std::string usual_dtype_name(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kOther[] = {
      {"bf16", "bfloat16"}, {"fp16", "float16"}, {"f16", "float16"},   {"half", "float16"},
      {"fp32", "float32"},  {"f32", "float32"},  {"float", "float32"}, {"single", "float32"},
      {"fp64", "float64"},  {"f64", "float64"},  {"double", "float64"}};
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text.starts_with("torch.")) text.erase(0, std::string_view("torch.").size());
  for (const auto& other : kOther) {
    if (text == other.first) return std::string(other.second);
  }
  std::vector<std::string> names;
  for (int i = 0; i < kDTypeCount; ++i) {
    if (can_be_cast_to(static_cast<DType>(i))) names.emplace_back(dtype_name(static_cast<DType>(i)));
  }
  return nearest_name(text, names);
}

DType parse_dtype(const std::string& text) {
  const std::optional<DType> dtype = dtype_from_name(text);
  if (dtype && can_be_cast_to(*dtype)) return *dtype;
  const std::string meant = dtype ? "" : usual_dtype_name(text);
  throw Error(Exit::usage, "bad value")
      .key("--dtype")
      .saw("a floating dtype by PyTorch's name, such as float32, bfloat16 or float8_e4m3fn", "'" + text + "'")
      .try_(meant.empty() ? "" : "--dtype " + meant);
}

RenameRule parse_rename(const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0) {
    throw Error(Exit::usage, "bad value").key("--rename").saw("REGEX=REPL", "'" + text + "'");
  }
  return {text.substr(0, at), text.substr(at + 1)};
}

Selection make_selection(const Options& options) {
  Selection selection;
  if (options.part != "all") {
    selection.model = options.part == "model";
    selection.optimizer = options.part == "optimizer";
    selection.extra = false;
  }
  selection.drop = options.drop;
  for (const std::string& rule : options.rename) selection.rename.push_back(parse_rename(rule));
  selection.strip_wrappers = options.strip_wrappers;
  if (!options.dtype.empty()) selection.cast = parse_dtype(options.dtype);
  selection.fill_missing = options.fill_missing;
  return selection;
}

// The command line that is being run, without a flag and its value.
std::string command_without(const Context& context, const std::string& flag) {
  std::string text = "fsdpctl";
  for (size_t i = 0; i < context.arguments.size(); ++i) {
    const std::string& argument = context.arguments[i];
    if (argument == flag) ++i;
    else if (!argument.starts_with(flag + "=")) text += " " + shell_quoted(argument);
  }
  return text;
}

void check_fit(const Options& options, const Context& context) {
  const Capabilities can = options.format->capabilities();
  if (options.max_shard_bytes && !can.shard_size) {
    throw Error(Exit::usage, "this format has no shard size")
        .key("--max-shard-size")
        .found_only(fmt::format("--to {}", options.format->name()))
        .try_(command_without(context, "--max-shard-size"));
  }
  if (options.max_shard_bytes && writes_one_file(*options.format, options.output.path)) {
    throw Error(Exit::usage, "one file has no shard size")
        .key("--max-shard-size")
        .saw("a directory to write, of a name without ending", "'" + options.output.path + "'");
  }
  if (options.world_size && !can.world_size) {
    throw Error(Exit::usage, "this format has no world size")
        .key("--world-size")
        .found_only(fmt::format("--to {}", options.format->name()))
        .try_(command_without(context, "--world-size"));
  }
}

// What decides the output's content, so that an interrupted run is continued by the same arguments only.
std::string identity(const Options& options) {
  return fmt::format("convert part {} dtype {} rename {} drop {} strip {} fill {}", options.part, options.dtype,
                     joined(options.rename, "\n"), joined(options.drop, "\n"), options.strip_wrappers,
                     options.fill_missing);
}

void note_if_nothing_was_stripped(const std::vector<Change>& changes, Printer& printer) {
  const auto renamed = [](const Change& change) { return change.kind == "renamed"; };
  if (std::any_of(changes.begin(), changes.end(), renamed)) return;
  printer.remark(note("--strip-wrappers found no wrapper").found_only("'module.' is one only where every name begins with it; --rename takes others away"));
}

Exit run_convert(const Options& options, const Context& context) {
  const Selection selection = make_selection(options);
  check_fit(options, context);
  check_output(options.output, options.input, *options.format, context);
  FindingSink sink;
  Opened opened = open_input(context, options.input, sink, options.output.follow_links);
  if (!options.output.dry_run) resolve_pieces(opened.checkpoint, context.printer.globals().threads, sink);
  report_beside(opened, sink);
  context.printer.remarks(sink.all());
  Job job;
  job.changes = changes_of_beside(opened);
  Checkpoint selected = select(opened.checkpoint, selection, job.changes);
  if (options.strip_wrappers && options.rename.empty()) note_if_nothing_was_stripped(job.changes, context.printer);
  // Formats of several ranks are DCP's, which know no keys but text; all others keep every kind of key.
  if (!options.format->capabilities().world_size) selected = with_integer_ids(selected, job.changes);
  job.verb = "convert";
  job.checkpoint = &selected;
  job.format = options.format;
  job.world_size = !options.format->capabilities().world_size
                       ? 1
                       : options.world_size.value_or(std::max<int64_t>(1, selected.world_size));
  job.max_shard_bytes = options.max_shard_bytes.value_or(0);
  job.arguments = identity(options);
  return write_output(job, options.output, context);
}

uint64_t parse_shard_size(const std::string& text) {
  const std::optional<uint64_t> bytes = parse_size(text);
  if (!bytes)
    throw Error(Exit::usage, "bad value").key("--max-shard-size").saw("a size such as 5GB or 512MiB", "'" + text + "'");
  return *bytes;
}

void parse_part(const std::string& text, Options& options) {
  if (text != "model" && text != "optimizer" && text != "all") {
    throw Error(Exit::usage, "bad value").key("--part").saw("model, optimizer or all", "'" + text + "'");
  }
  options.part = text;
}

Run declare(CLI::App& app, const FormatList& formats) {
  auto options = std::make_shared<Options>();
  app.add_option("CKPT", options->input, "checkpoint directory or file, or a run directory (its newest complete step)")
      ->required();
  add_value(
      app, "--to", [options, &formats](const std::string& text) { options->format = parse_format("--to", text, formats); },
      format_choices(formats), "format to write")
      ->required();
  add_value(
      app, "--world-size",
      [options](const std::string& text) { options->world_size = parse_world_size("--world-size", text); }, "N",
      "number of ranks to write for; default: the source's");
  add_value(
      app, "--part", [options](const std::string& text) { parse_part(text, *options); }, "model|optimizer|all",
      "write only this part; default: all, other state included");
  add_value(
      app, "--dtype", [options](const std::string& text) { options->dtype = text; }, "DTYPE",
      "cast the model's floating tensors to this dtype (PyTorch's name); what changed is listed");
  add_list(app, "--rename", options->rename, "REGEX=REPL",
           "rename FQNs, everywhere they occur: RE2 syntax, \\1 is the first group; may be given several times");
  add_list(app, "--drop", options->drop, "GLOB",
           "leave out what matches, by FQN or path; * matches dots too; may be given several times");
  app.add_flag("--strip-wrappers", options->strip_wrappers,
               "remove module., _orig_mod., _fsdp_wrapped_module. and _checkpoint_wrapped_module. from FQNs");
  app.add_flag("--fill-missing", options->fill_missing,
               "add fields of param groups and LR schedulers that newer PyTorch wants, with their defaults");
  add_value(
      app, "--max-shard-size",
      [options](const std::string& text) { options->max_shard_bytes = parse_shard_size(text); }, "SIZE",
      "safetensors directories: largest file; default 5GB");
  add_output_flags(app, options->output);
  return [options](const Context& context) {
    return with_verify_hint(options->input, [&] { return run_convert(*options, context); });
  };
}

}  // namespace

Command convert_command() {
  return {
      "convert",
      "write a checkpoint in another format",
      "CKPT -o OUT --to FORMAT",
      "Writes a checkpoint in another format, all of it or a part. Optimizer state and other state travel to every "
      "format that can carry "
      "them; where one cannot, the run is refused, not shortened. Nothing is dropped, cast, renamed or filled in "
      "unless a flag asks for it, and "
      "what was done is listed and recorded in the manifest.\n\n"
      "OUT is one file for torch, hdf5, and safetensors if its name ends in .safetensors; else a directory. It appears "
      "only when it is "
      "complete: it was synced, opened again, read back and compared with the source. An interrupted run leaves "
      "OUT.partial-..., which "
      "the same command continues.",
      {{"fsdpctl convert step-1200 -o model.safetensors --to safetensors --part model", "weights for inference"},
       {"fsdpctl convert step-1200 -o step-1200.pt --to torch", "everything, for torch.load"},
       {"fsdpctl convert model.pt -o model-w8 --to dcp --world-size 8", "for dcp.load on eight ranks"},
       {"fsdpctl convert step-1200 -o half.safetensors --to safetensors --part model --dtype bfloat16",
        "cast; what changed is listed"}},
      {{0, "written and proven equal"},
       {2, "used wrongly; output exists"},
       {3, "source is damaged or incomplete"},
       {4, "refused: would lose something, or names collide; the message names the flag that decides"},
       {5, "not recognised, not supported, or unsafe content"},
       {6, "could not finish: not found, input or output error, no space"},
       {130, "interrupted (143 by SIGTERM); nothing was published"}},
      declare};
}

}  // namespace fsdpctl
