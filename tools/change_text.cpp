#include "tools/change_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/unread_files.h"
#include "lib/base/cast.h"
#include "tools/size_text.h"

namespace fsdpctl {
namespace {

bool is_cast(const Change& change) {
  return change.kind == "cast";
}

bool is_not_carried(const Change& change) {
  return change.kind == "not carried";
}

bool changed_values(const CastCounts& counts) {
  return counts.changed + counts.overflowed + counts.flushed > 0;
}

std::string counts_text(const CastCounts& counts) {
  if (!changed_values(counts)) return "no value changed";
  return fmt::format("{} changed, {} overflowed, {} flushed to zero", count_text(counts.changed, "value"),
                     count_text(counts.overflowed), count_text(counts.flushed));
}

std::string line_of(const Change& change) {
  if (change.casts) {
    const std::string dtypes = change.detail.substr(0, change.detail.find(','));
    return fmt::format("{}: {}, {}", shown_key(change.key), dtypes, counts_text(*change.casts));
  }
  return shown_key(change.key) + (change.detail.empty() ? "" : ": " + change.detail);
}

Json fields(const Change& change) {
  Json object = {{"kind", change.kind}, {"key", change.key}, {"detail", change.detail}};
  if (change.casts) {
    object["changed"] = change.casts->changed;
    object["overflowed"] = change.casts->overflowed;
    object["flushed"] = change.casts->flushed;
  }
  return object;
}

// All casts in one line.
void print_sum_of_casts(const std::vector<Change>& changes, Printer& printer) {
  uint64_t tensors = 0;
  bool counted = true;
  CastCounts sum;
  for (const Change& change : changes) {
    if (!is_cast(change)) continue;
    ++tensors;
    if (change.casts) sum += *change.casts;
    counted = counted && change.casts.has_value();
  }
  if (tensors == 0) return;
  printer.row("cast", fmt::format("{} in all, {}", count_text(tensors, "tensor"),
                                  counted ? counts_text(sum) : "counted when they are written"));
}

// All files in one line, as their warning has them.
void print_not_carried(const std::vector<Change>& changes, Printer& printer) {
  std::vector<std::string> names;
  for (const Change& change : changes) {
    if (is_not_carried(change)) names.push_back(change.key);
  }
  if (!names.empty()) printer.row("not carried", some_names(names));
}

}  // namespace

void print_changes(const std::vector<Change>& changes, Printer& printer) {
  const bool all = printer.globals().verbose > 0;
  size_t shown = 0, left_out = 0;
  for (const Change& change : changes) {
    printer.record("change", fields(change));
    if (printer.json()) continue;
    if (is_not_carried(change) && !all) continue;
    if (is_cast(change) && !all && !(change.casts && changed_values(*change.casts))) continue;
    if (shown == Printer::kMostFindings) {
      ++left_out;
      continue;
    }
    ++shown;
    printer.row(change.kind, line_of(change));
  }
  if (printer.json()) return;
  if (left_out > 0) {
    printer.text(fmt::format("  ... and {} more; --json and the manifest list all", count_text(left_out)));
  }
  print_sum_of_casts(changes, printer);
  if (!all) print_not_carried(changes, printer);
}

}  // namespace fsdpctl
