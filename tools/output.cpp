#include "tools/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lib/base/checksum.h"
#include "lib/base/file.h"
#include "lib/base/shell_quoted.h"
#include "lib/ckpt/untie.h"
#include "lib/ckpt/writable.h"
#include "tools/change_text.h"
#include "tools/command_line.h"
#include "tools/engine_session.h"
#include "tools/output_path.h"
#include "tools/size_text.h"
#include "tools/worker.h"

namespace fsdpctl {
namespace {

constexpr size_t kMostExamples = 3;  // of what a format cannot carry, in text

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool has_ending(const std::string& path, const std::vector<std::string_view>& endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.size() > ending.size() && path.ends_with(ending); });
}

// A directory that is written from a directory of such a name: Lightning calls its sharded checkpoints last.ckpt.
bool is_named_as_input(const std::string& output, const std::string& input, std::string_view ending) {
  const std::string directory = stat_path(input).kind == FileKind::file ? parent_path(input) : without_slashes(input);
  return output.ends_with(ending) && stat_path(directory).kind == FileKind::directory && directory.ends_with(ending);
}

bool is_refused_ending(const std::string& output, const std::string& input, const Format& format, const Format& other) {
  const Capabilities can = format.capabilities();
  std::vector<std::string_view> endings = other.capabilities().endings;
  std::erase_if(endings, [&](std::string_view ending) {
    return !can.single_file && is_named_as_input(output, input, ending);
  });
  return has_ending(output, endings);
}

void check_ending(const OutputOptions& options, const std::string& input, const Format& format,
                  const Context& context) {
  const std::string name = without_slashes(options.path);
  if (has_ending(name, format.capabilities().endings)) {
    if (options.path.ends_with('/')) throw Error(Exit::usage, "output is one file, not a directory").at(options.path);
    return;
  }
  for (const auto& other : context.formats) {
    if (!is_refused_ending(name, input, format, *other)) continue;
    throw Error(Exit::usage, "output's name belongs to another format")
        .at(options.path)
        .saw(fmt::format("a name for {}", format.name()), fmt::format("one that ends as {} files do", other->name()))
        .try_(options.keeps_format ? fmt::format("fsdpctl convert {} -o {} --to {}", shell_quoted(input),
                                                 shell_quoted(name), other->name())
                                   : fmt::format("--to {}", other->name()));
  }
  if (format.capabilities().single_file && options.path.ends_with('/')) {
    throw Error(Exit::usage, "output is one file, not a directory").at(options.path);
  }
}

Target make_target(const Job& job, const std::string& output, const TargetPlacement& placement) {
  Target target;
  target.placement = &placement;
  target.file_name = base_name(output);
  target.directory = !writes_one_file(*job.format, output);
  if (job.max_shard_bytes > 0) target.max_shard_bytes = job.max_shard_bytes;
  return target;
}

// One of each kind first: often one reason refuses every tensor of a model.
std::vector<Finding> examples_first(std::vector<Finding> findings) {
  std::set<std::string> kinds;
  std::stable_partition(findings.begin(), findings.end(),
                        [&](const Finding& f) { return kinds.insert(f.what).second; });
  return findings;
}

// All that cannot be carried is listed, then the run is refused with one error that says how to go on.
void check_carried(const Job& job, const Target& target, Printer& printer) {
  FindingSink sink(false);
  job.format->can_carry(*job.checkpoint, target, sink);
  std::vector<Finding> errors;
  std::copy_if(sink.all().begin(), sink.all().end(), std::back_inserter(errors),
               [](const Finding& f) { return f.severity == Severity::error; });
  if (errors.empty()) {
    printer.remarks(sink.all());
    return;
  }
  if (errors.size() == 1) throw Error(errors[0]);
  const size_t count = errors.size();
  const std::string hint = errors[0].hint;
  printer.remarks(examples_first(std::move(errors)), kMostExamples);
  throw Error(Exit::refused, "format cannot carry all of the checkpoint")
      .found_only(fmt::format("{} that {} cannot hold", count_text(count, "thing"), job.format->name()))
      .try_(hint);
}

void print_result(const Job& job, const OutputOptions& options, const PublishResult& result, Printer& printer) {
  const bool ranks = job.format->capabilities().world_size;
  std::string what = fmt::format("{}{}, {}, {}", job.format->name(),
                                 ranks ? " of " + count_text(static_cast<uint64_t>(job.world_size), "rank") : "",
                                 count_text(result.files, "file"), size_text(result.bytes));
  if (options.worker && !options.dry_run && !result.published) {
    what = fmt::format("share {} of {} is done ({}) in {}; the last worker to finish publishes", options.worker->index,
                       options.worker->count, size_text(result.bytes_written), visible(result.partial));
  } else if (options.dry_run) {
    what = printer.paint(Style::attention, "would be written") + ": " + what + "; nothing was written";
  } else {
    what = printer.paint(Style::good, "written") + ": " + what +
           (result.read_back ? ", read back and equal to the source" : ", not read back");
  }
  printer.text(fmt::format("{}: {}", printer.paint(Style::strong, visible(options.path)), what));
  if (result.bytes_resumed > 0) {
    printer.row("resumed", size_text(result.bytes_resumed) + (options.worker ? " were written by others or earlier"
                                                                             : " were there from an interrupted run"));
  }
  print_changes(result.changes, printer);
  Json summary = {{"schema_version", 1},
                  {"output", options.path},
                  {"format", job.format->name()},
                  {"world_size", job.world_size},
                  {"dry_run", options.dry_run},
                  {"published", result.published},
                  {"files", result.files},
                  {"bytes", result.bytes},
                  {"bytes_written", result.bytes_written},
                  {"bytes_resumed", result.bytes_resumed},
                  {"read_back", result.read_back},
                  {"changes", result.changes.size()}};
  if (!result.published && !options.dry_run) summary["partial"] = result.partial;
  if (result.published) {
    summary["fingerprint"] = hex64(result.fingerprint);
    summary["source_fingerprint"] = hex64(result.source_fingerprint);
  }
  printer.record("summary", std::move(summary));
}

}  // namespace

void add_output_flags(CLI::App& app, OutputOptions& options) {
  app.add_option("-o,--output", options.path, "where to write; must not exist")->type_name("OUT")->required();
  app.add_flag(
      "--force", options.force,
      "replace an existing OUT that is a checkpoint or empty, in one step and only when the new one is proven");
  app.add_flag("--dry-run", options.dry_run, "say what would be written, from metadata alone, and write nothing");
  app.add_flag("--no-read-back", options.no_read_back, "do not read the output back to compare it with the source");
  add_value(
      app, "--worker", [&options](const std::string& text) { options.worker = parse_worker(text); }, "I/N|auto",
      "do share I (from 0) of N only: N processes that see the same files do the work together, and the last one "
      "publishes; auto: this process's rank and world size under torchrun, SLURM or Open MPI");
  app.add_flag("--follow-links", options.follow_links, "follow symbolic links that lead out of the checkpoint");
}

bool writes_one_file(const Format& format, const std::string& path) {
  const Capabilities can = format.capabilities();
  return can.single_file || has_ending(without_slashes(path), can.endings);
}

void check_output(const OutputOptions& options, const std::string& input, const Format& format,
                  const Context& context) {
  const std::string output = without_slashes(options.path);
  const std::string name = base_name(output);
  if (output.empty() || output == "/" || name == "." || name == "..") {
    throw Error(Exit::usage, "output needs a name").key("--output").found_only("'" + options.path + "'");
  }
  check_ending(options, input, format, context);
  check_parent(output);
  check_apart(output, input, context.formats);
  const FileStat there = stat_path(output);
  if (there.kind == FileKind::absent && !there.is_link) return;
  std::string forced = command_with(context, {"--force"});
  try {
    check_replaceable(output, context.formats);
  } catch (const Error&) {
    if (options.force) throw;
    forced.clear();  // would be refused as well
  }
  if (!options.force) throw Error(Exit::usage, "output exists").at(output).try_(std::move(forced));
}

Exit with_verify_hint(const std::string& input, const std::function<Exit()>& run) {
  try {
    return run();
  } catch (const Error& e) {
    if (e.code() != Exit::damaged || !e.finding().hint.empty()) throw;
    Finding finding = e.finding();
    finding.hint = "fsdpctl verify --data " + shell_quoted(input);
    throw Error(std::move(finding));
  }
}

Exit write_output(Job job, const OutputOptions& options, const Context& context) {
  check_writable(*job.checkpoint);  // before formats are asked: this reason is the better one
  const std::string output = without_slashes(options.path);
  std::optional<Checkpoint> apart;
  if (!job.format->capabilities().ties && !job.checkpoint->aliases.empty()) {
    job.checkpoint = &apart.emplace(untied(*job.checkpoint, job.changes));
  }
  const TargetPlacement placement = place(*job.checkpoint, job.world_size);
  const Target target = make_target(job, output, placement);
  check_carried(job, target, context.printer);
  FindingSink sink;
  PublishResult result;
  try {
    EngineSession session(context.printer, job.verb);
    PublishOptions how;
    how.engine = session.options();
    how.force = options.force;
    how.read_back = !options.no_read_back;
    how.dry_run = options.dry_run;
    how.worker = options.worker;
    how.arguments =
        fmt::format("{} {} {} {}", job.arguments, job.format->name(), job.world_size, target.max_shard_bytes);
    how.changes = job.changes;
    result = publish(*job.checkpoint, *job.format, target, output, how, sink);
  } catch (const Error&) {
    context.printer.remarks(sink.all());
    throw;
  }
  context.printer.remarks(sink.all());
  print_result(job, options, result, context.printer);
  return Exit::ok;
}

}  // namespace fsdpctl
