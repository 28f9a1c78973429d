#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/checksum.h"
#include "lib/ckpt/verify.h"
#include "lib/ckpt/writable.h"
#include "tools/inspect_command.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

template <class Text>
std::string listed(const std::vector<Text>& names, std::string_view between, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i)
    text += std::string(i == 0 ? "" : between) + std::string(names[i]);
  if (names.size() > most) text += fmt::format(" and {} more", count_text(names.size() - most));
  return text;
}

uint64_t error_count(const std::vector<Finding>& findings) {
  return static_cast<uint64_t>(
      std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return f.severity == Severity::error; }));
}

std::string_view verdict_of(Exit code) {
  switch (code) {
    case Exit::failed:
      return "could not be read";
    case Exit::unsupported:
      return "unsafe or not supported";
    case Exit::refused:
      return "refused";
    default:
      return "damaged or incomplete";
  }
}

std::string headline(const Inspected& inspected, const Printer& printer) {
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  const uint64_t errors = error_count(inspected.findings);
  std::string verdict = printer.paint(Style::good, "whole by its metadata");
  if (errors > 0) {
    verdict = printer.paint(Style::bad, verdict_of(exit_code(inspected.findings))) + ": " + count_text(errors, "problem");
  } else if (is_rank_part(checkpoint)) {
    verdict = printer.paint(Style::attention, "one rank's part");
  }
  uint64_t tensors = 0, bytes = 0;
  for (const PartTotal& part : inspected.overview.parts) tensors += part.tensors, bytes += part.bytes;
  const std::string ranks =
      checkpoint.world_size > 1 ? " of " + count_text(static_cast<uint64_t>(checkpoint.world_size), "rank") : "";
  return fmt::format("{}: {} checkpoint{}, {}, {}, {}", printer.paint(Style::strong, visible(inspected.path)),
                     checkpoint.format, ranks, count_text(tensors, "tensor"), size_text(bytes), verdict);
}

std::string part_text(const PartTotal& part) {
  std::string text = fmt::format("{}, {}, {}", count_text(part.tensors, "tensor"), count_text(part.elements, "element"),
                                 size_text(part.bytes));
  if (part.dtypes.size() == 1) return text + fmt::format(", all {}", dtype_name(part.dtypes[0].dtype));
  std::string dtypes;
  for (const DTypeTotal& d : part.dtypes) {
    dtypes += fmt::format("{}{} {} ({})", dtypes.empty() ? "" : ", ", dtype_name(d.dtype), size_text(d.bytes),
                          count_text(d.tensors));
  }
  return dtypes.empty() ? text : text + ": " + dtypes;
}

std::string step_text(const StepRange& step) {
  std::string text = step.lowest == step.highest ? fmt::format("step {}", step.lowest)
                                                 : fmt::format("step {} to {}", step.lowest, step.highest);
  if (step.read < step.total) text += fmt::format(" (of {} in {})", count_text(step.read), count_text(step.total));
  return text;
}

std::string optimizer_text(const OptimizerOverview& optimizer) {
  const OptimizerInfo& info = *optimizer.info;
  std::string text = info.class_guess.empty() ? "of unknown class" : "like " + info.class_guess;
  if (!info.path.empty()) text += fmt::format(" at {}", info.path);
  text += fmt::format(", {}, {} with state", count_text(info.groups.size(), "group"),
                      count_text(info.parameters.size(), "parameter"));
  if (info.integer_ids && !info.named) text += " (ids, no names recorded)";
  if (!info.fields.empty()) text += ": " + listed(info.fields, " ", 8);
  if (optimizer.step) text += ", " + step_text(*optimizer.step);
  return text;
}

std::string state_text(const StateEntry& entry) {
  if (entry.summary.empty()) return fmt::format("{}, {}", shown_key(entry.path), count_text(entry.leaves, "value"));
  return shown_key(entry.path) + ": " + entry.summary;
}

// Counters share a line; so does what no rule recognises, by its count.
void print_state(const std::vector<StateEntry>& state, Printer& printer) {
  std::vector<std::string> counters, others;
  for (const StateEntry& entry : state) {
    switch (entry.kind) {
      case StateKind::scaler:
        printer.row("scaler", state_text(entry));
        break;
      case StateKind::scheduler:
        printer.row("scheduler", state_text(entry));
        break;
      case StateKind::rng:
        printer.row("rng", state_text(entry));
        break;
      case StateKind::counter:
        counters.push_back(shown_key(entry.path) + " " + entry.summary);
        break;
      case StateKind::other:
        others.push_back(shown_key(entry.path));
        break;
    }
  }
  if (!counters.empty()) printer.row("counters", listed(counters, ", ", 8));
  if (!others.empty()) printer.row("other", listed(others, ", ", 6) + " (--extra shows it)");
}

void print_text(const Inspected& inspected, Printer& printer) {
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  const Overview& overview = inspected.overview;
  printer.text(headline(inspected, printer));
  if (!inspected.opened.chosen.empty()) printer.row("chosen", inspected.opened.chosen + ", the newest complete step");
  printer.row("format", checkpoint.format + ": " + inspected.opened.match.reason +
                            (checkpoint.format_detail.empty() ? "" : "; " + checkpoint.format_detail));
  printer.row("files",
              fmt::format("{}, {}", count_text(checkpoint.data_files.size(), "file"), size_text(overview.file_bytes)));
  printer.row("world size", fmt::format("{}{}", count_text(static_cast<uint64_t>(checkpoint.world_size)),
                                        checkpoint.world_size_inferred ? ", inferred from the highest rank" : ""));
  std::string placements;
  for (const auto& placement : overview.placements) {
    placements += fmt::format("{}{} {}", placements.empty() ? "" : ", ", placement.first, count_text(placement.second));
  }
  // On one rank there is nothing to spread.
  if (!placements.empty() && (checkpoint.world_size > 1 || overview.placements.size() > 1)) {
    printer.row("placement", placements);
  }
  for (const auto& fact : checkpoint.facts) printer.row(fact.first, clipped(fact.second));
  for (const Part part : {Part::model, Part::optimizer, Part::extra}) {
    const PartTotal& total = overview.parts[static_cast<int>(part)];
    if (total.tensors > 0 || part == Part::model)
      printer.row(part == Part::extra ? "extra" : part_name(part), part_text(total));
    if (part != Part::optimizer) continue;
    for (const OptimizerOverview& optimizer : overview.optimizers) printer.row("", optimizer_text(optimizer));
  }
  if (overview.aliases > 0)
    printer.row("aliases", count_text(overview.aliases, "name shares", "names share") + " another tensor's bytes");
  print_state(overview.state, printer);
  printer.row("manifest", overview.manifest ? "fingerprint " + hex64(overview.manifest->fingerprint)
                                            : "none: checksums are not recorded");
  if (inspected.fingerprint) printer.row("fingerprint", hex64(*inspected.fingerprint));
}

Json part_json(const PartTotal& total) {
  Json dtypes = Json::object();
  for (const DTypeTotal& d : total.dtypes)
    dtypes[std::string(dtype_name(d.dtype))] = {{"tensors", d.tensors}, {"bytes", d.bytes}};
  return {
      {"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}, {"dtypes", std::move(dtypes)}};
}

Json optimizer_json(const OptimizerOverview& optimizer) {
  const OptimizerInfo& info = *optimizer.info;
  Json object = {{"path", info.path},
                 {"class_guess", info.class_guess},
                 {"flattened", info.flattened},
                 {"integer_ids", info.integer_ids},
                 {"named", info.named},
                 {"groups", info.groups.size()},
                 {"parameters", info.parameters.size()},
                 {"fields", info.fields}};
  if (optimizer.step) {
    object["step"] = {{"lowest", optimizer.step->lowest},
                      {"highest", optimizer.step->highest},
                      {"read", optimizer.step->read},
                      {"total", optimizer.step->total}};
  }
  return object;
}

std::string_view state_name(StateKind kind) {
  switch (kind) {
    case StateKind::scaler:
      return "scaler";
    case StateKind::scheduler:
      return "scheduler";
    case StateKind::rng:
      return "rng";
    case StateKind::counter:
      return "counter";
    case StateKind::other:
      return "other";
  }
  return "other";
}

Json overview_json(const Inspected& inspected) {
  const Checkpoint& checkpoint = inspected.opened.checkpoint;
  const Overview& overview = inspected.overview;
  Json parts = Json::object(), placements = Json::object(), facts = Json::object(), optimizers = Json::array(),
       state = Json::array();
  for (const Part part : {Part::model, Part::optimizer, Part::extra}) {
    parts[std::string(part_name(part))] = part_json(overview.parts[static_cast<int>(part)]);
  }
  for (const auto& placement : overview.placements) placements[placement.first] = placement.second;
  for (const auto& fact : checkpoint.facts) facts[fact.first] = fact.second;
  for (const OptimizerOverview& optimizer : overview.optimizers) optimizers.push_back(optimizer_json(optimizer));
  for (const StateEntry& entry : overview.state) {
    state.push_back(
        {{"kind", state_name(entry.kind)}, {"path", entry.path}, {"summary", entry.summary}, {"leaves", entry.leaves}});
  }
  Json fields = {{"path", inspected.path},
                 {"whole", error_count(inspected.findings) == 0},
                 {"format", checkpoint.format},
                 {"format_detail", checkpoint.format_detail},
                 {"matched", inspected.opened.match.reason},
                 {"chosen", inspected.opened.chosen},
                 {"passed_over", inspected.opened.passed_over},
                 {"files", checkpoint.data_files},
                 {"file_bytes", overview.file_bytes},
                 {"world_size", checkpoint.world_size},
                 {"world_size_inferred", checkpoint.world_size_inferred},
                 {"pieces", checkpoint.pieces.size()},
                 {"placements", std::move(placements)},
                 {"facts", std::move(facts)},
                 {"parts", std::move(parts)},
                 {"aliases", overview.aliases},
                 {"optimizers", std::move(optimizers)},
                 {"state", std::move(state)}};
  if (overview.manifest) fields["manifest_fingerprint"] = hex64(overview.manifest->fingerprint);
  if (inspected.fingerprint) fields["fingerprint"] = hex64(*inspected.fingerprint);
  return fields;
}

}  // namespace

void print_overview(const Inspected& inspected, Printer& printer) {
  if (printer.json()) {
    printer.record("checkpoint", overview_json(inspected));
  } else {
    print_text(inspected, printer);
  }
}

}  // namespace fsdpctl
