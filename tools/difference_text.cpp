#include "tools/difference_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/box.h"
#include "tools/size_text.h"
#include "tools/table.h"

namespace fsdpctl {
namespace {

std::string values_text(const Difference& d) {
  if (d.different == 0 && d.max_abs == 0) return "values are equal";
  const std::string most = fmt::format("max abs {:.6g}, max rel {:.6g}", d.max_abs, d.max_rel);
  if (d.different == 0) return "values are within the tolerance, " + most;
  std::string text =
      fmt::format("{} of {} {}, {}", count_text(d.different), count_text(d.elements, "element"),
                  d.different == 1 ? "differs" : "differ", most);
  if (!d.first_index.empty()) text += ", first at " + dims_text(d.first_index);
  return text;
}

std::string detail(const Difference& d, const DifferenceWords& words) {
  switch (d.kind) {
    case Difference::Kind::missing:
      return clipped(d.a) + ", " + words.missing;
    case Difference::Kind::added:
      return clipped(d.b) + ", " + words.added;
    case Difference::Kind::values:
      return values_text(d);
    case Difference::Kind::dtype:
      return d.a + " -> " + d.b + (d.elements > 0 ? ": " + values_text(d) : "");
    default:
      return clipped(d.a) + " -> " + clipped(d.b);
  }
}

Json fields(const Difference& d) {
  Json object = {{"kind", difference_name(d.kind)}, {"key", d.key}, {"a", d.a}, {"b", d.b}};
  if (d.elements > 0) {
    object["different"] = d.different;
    object["elements"] = d.elements;
    object["max_abs"] = d.max_abs;
    object["max_rel"] = d.max_rel;
    object["first_index"] = d.first_index;
  }
  return object;
}

}  // namespace

void print_differences(const std::vector<Difference>& differences, Printer& printer, const DifferenceWords& words) {
  if (printer.json()) {
    for (const Difference& d : differences) printer.record("difference", fields(d));
    return;
  }
  if (differences.empty()) return;
  Table table({"kind", "name", "difference"});
  for (const Difference& d : differences)
    table.add({std::string(difference_name(d.kind)), shown_key(d.key), detail(d, words)});
  table.print(printer, 2);
}

}  // namespace fsdpctl
