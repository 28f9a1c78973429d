#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "lib/ckpt/diff.h"
#include "tools/command_line.h"
#include "tools/difference_text.h"
#include "tools/engine_session.h"
#include "tools/open_input.h"
#include "tools/size_text.h"
#include "tools/table.h"

namespace fsdpctl {
namespace {

struct Options {
  std::string a, b;
  double rtol = 0, atol = 0;
  std::string name;
  bool data = false, structure = false;
  bool follow_links = false;
};

std::string headline(const Options& options, const DiffReport& report, const Printer& printer) {
  std::string compared = fmt::format("{} and {} compared", count_text(report.compared_tensors, "tensor"),
                                     count_text(report.compared_values, "other value"));
  if (!report.containers.empty()) {
    compared += fmt::format("; {} of another class", count_text(report.containers.size(), "container"));
  }
  if (!report.same()) {
    return fmt::format("{}: {}, {}", printer.paint(Style::bad, "different"),
                       count_text(report.differences.size(), "difference"), compared);
  }
  std::string how = compared;
  if (options.structure) how += "; names, dtypes and shapes only";
  if (options.rtol > 0 || options.atol > 0)
    how += fmt::format("; within atol {:g} + rtol {:g} of the second", options.atol, options.rtol);
  if (report.by_fingerprint) {
    how = fmt::format("{} by the fingerprints in both manifests; --data compares the bytes",
                      count_text(report.compared_tensors, "tensor"));
  }
  return fmt::format("{}: {}", printer.paint(Style::good, "same"), how);
}

// Said, and no difference: see ContainerChange.
void print_containers(const std::vector<ContainerChange>& containers, Printer& printer) {
  Table table({"container", "class"});
  for (const ContainerChange& c : containers) {
    printer.record("container", {{"key", c.key}, {"a", c.a}, {"b", c.b}});
    if (!printer.json()) table.add({shown_key(c.key), c.a + " -> " + c.b});
  }
  if (!table.empty()) table.print(printer, 2);
}

Exit run_diff(const Options& options, const Context& context) {
  DiffOptions how;
  how.rtol = options.rtol;
  how.atol = options.atol;
  how.name_glob = options.name;
  how.structure_only = options.structure;
  how.trust_manifests = !options.data;
  FindingSink sink;
  Opened a = open_input(context, options.a, sink, options.follow_links);
  Opened b = open_input(context, options.b, sink, options.follow_links);
  DiffReport report;
  {
    EngineSession session(context.printer, "diff");
    how.engine = session.options();
    if (!options.structure) {
      resolve_pieces(a.checkpoint, how.engine.threads, sink);
      resolve_pieces(b.checkpoint, how.engine.threads, sink);
    }
    report = diff(a.checkpoint, b.checkpoint, how, sink);
  }
  // A mistyped name must not end in "same".
  if (!options.name.empty() && report.same() && report.compared_tensors + report.compared_values == 0) {
    throw Error(Exit::refused, "nothing matches --name").found_only(options.name);
  }
  context.printer.remarks(sink.all());
  context.printer.text(headline(options, report, context.printer));
  print_differences(report.differences, context.printer);
  print_containers(report.containers, context.printer);
  context.printer.record("summary", {{"schema_version", 1},
                                     {"a", options.a},
                                     {"b", options.b},
                                     {"same", report.same()},
                                     {"differences", report.differences.size()},
                                     {"compared_tensors", report.compared_tensors},
                                     {"compared_values", report.compared_values},
                                     {"by_fingerprint", report.by_fingerprint},
                                     {"containers", report.containers.size()}});
  return report.same() ? Exit::ok : Exit::different;
}

Run declare(CLI::App& app, const FormatList&) {
  auto options = std::make_shared<Options>();
  app.add_option("A", options->a, "the first checkpoint")->required();
  app.add_option("B", options->b, "the second, of any format and world size")->required();
  auto* rtol = add_value(
      app, "--rtol", [options](const std::string& text) { options->rtol = parse_tolerance("--rtol", text); }, "X",
      "relative tolerance: elements a and b are equal when |a - b| <= atol + rtol * |b|; default 0");
  auto* atol = add_value(
      app, "--atol", [options](const std::string& text) { options->atol = parse_tolerance("--atol", text); }, "X",
      "absolute tolerance; default 0. Both 0: bit for bit");
  app.add_option("--name", options->name, "only keys that match; * matches dots too")->type_name("GLOB");
  auto* data =
      app.add_flag("--data", options->data, "compare the bytes even where both manifests record the same fingerprint");
  app.add_flag("--structure", options->structure, "compare names, dtypes and shapes only; read no data")
      ->excludes(data)
      ->excludes(rtol)
      ->excludes(atol);
  app.add_flag("--follow-links", options->follow_links, "follow symbolic links that lead out of a checkpoint");
  return [options](const Context& context) { return run_diff(*options, context); };
}

}  // namespace

Command diff_command() {
  return {"diff",
          "compare two checkpoints, whatever their formats and world sizes",
          "A B",
          "Compares two checkpoints: tensors by name, dtype, shape and values, other state field by field. Format, "
          "placement and world "
          "size do not count, nor do the names that a format gives the parts (model, optim).\n\n"
          "A value is named by its path, whatever holds it: where one side has a dict and the other an OrderedDict or "
          "a Counter, a list and a tuple, or keys 0 and \"0\", but the same entries (DCP makes such changes), that is "
          "listed as a container of another class and is no difference.\n\n"
          "Where both have a manifest and these record the same fingerprint, they are the same and no data is read, "
          "unless --data or --name is given. Otherwise every tensor is read once for its checksum, and those whose "
          "checksums differ are compared element by element.",
          {{"fsdpctl diff step-1200 step-1200-w3", "nothing was lost in resharding?"},
           {"fsdpctl diff --rtol 1e-3 --name 'model.*' a b", "weights only, with a tolerance"}},
          {{0, "same; classes of containers do not count"},
           {1, "different"},
           {2, "used wrongly"},
           {3, "one of them is damaged or incomplete"},
           {4, "refused: ambiguous which checkpoint is meant, or nothing matches --name"},
           {5, "not recognised, not supported, or unsafe content"},
           {6, "not found, or could not be read"},
           {130, "interrupted (143 by SIGTERM)"}},
          declare};
}

}  // namespace fsdpctl
