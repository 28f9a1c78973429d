#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/base/checksum.h"
#include "tools/size_text.h"
#include "tools/table.h"
#include "tools/verify_command.h"

namespace fsdpctl {
namespace {

uint64_t count_of(const VerifyReport& report, Severity severity) {
  return static_cast<uint64_t>(std::count_if(report.findings.begin(), report.findings.end(),
                                             [&](const Finding& f) { return f.severity == severity; }));
}

// "Not recorded" is never "ok": what could not be compared says so.
std::string manifest_text(const VerifyReport& report, bool data) {
  if (!report.has_manifest) return "not recorded: whether these are the bytes that were saved cannot be known";
  if (!data) return "names, dtypes and shapes agree; its checksums were not compared (--data)";
  return fmt::format("recorded checksum found in {} of {}", count_text(report.manifest_matches),
                     count_text(report.tensors, "tensor"));
}

std::string crc32_text(const VerifyReport& report) {
  if (report.crc32_checked == 0) return "not recorded in these files";
  std::string text = count_text(report.crc32_checked) + " match";
  if (report.crc32_absent > 0) text += fmt::format(", {} not recorded", count_text(report.crc32_absent));
  return text;
}

// `sealed`: its manifest was written just now, and the next line says so.
void print_text(const VerifyReport& report, bool data, bool sealed, Printer& printer) {
  const uint64_t errors = count_of(report, Severity::error), warnings = count_of(report, Severity::warning);
  std::string verdict = errors == 0 ? printer.paint(Style::good, "no damage found")
                                    : printer.paint(Style::bad, count_text(errors, "error"));
  if (warnings > 0) verdict += ", " + count_text(warnings, "warning");
  std::string line = fmt::format("{}: {}", printer.paint(Style::strong, visible(report.path)), verdict);
  if (!report.format.empty()) {
    line += fmt::format("; {}, {} in {}, {}", report.format, count_text(report.tensors, "tensor"),
                        count_text(report.pieces, "piece"), count_text(report.files, "file"));
  }
  printer.text(line);
  if (report.format.empty()) return;
  if (!report.chosen.empty()) printer.row("chosen", report.chosen + ", the newest complete step");
  printer.row("data", data ? size_text(report.bytes_read) + " read" : "not read (--data reads every byte)");
  if (!sealed) printer.row("manifest", manifest_text(report, data));
  if (!data) return;
  printer.row("crc-32", crc32_text(report));
  if (report.replicas_checked > 0) printer.row("replicas", count_text(report.replicas_checked) + " compared");
  if (report.fingerprint != 0) printer.row("fingerprint", hex64(report.fingerprint));
}

void print_nonfinite(const VerifyReport& report, Printer& printer) {
  Table table({"tensor", "NaN", "Inf"});
  for (const NonFinite& n : report.nonfinite) {
    printer.record("nonfinite", {{"checkpoint", report.path}, {"key", n.key}, {"nan", n.nan}, {"inf", n.inf}});
    if (!printer.json()) table.add({shown_key(n.key), count_text(n.nan), count_text(n.inf)});
  }
  if (!table.empty()) table.print(printer, 2);
}

Json report_fields(const VerifyReport& report, bool data) {
  Json fields = {{"path", report.path},
                 {"format", report.format},
                 {"chosen", report.chosen},
                 {"code", static_cast<int>(report.exit_code())},
                 {"level", data ? "data" : "structure"},
                 {"errors", count_of(report, Severity::error)},
                 {"warnings", count_of(report, Severity::warning)},
                 {"tensors", report.tensors},
                 {"pieces", report.pieces},
                 {"files", report.files},
                 {"bytes_read", report.bytes_read},
                 {"manifest", report.has_manifest},
                 {"manifest_matches", report.manifest_matches},
                 {"crc32_checked", report.crc32_checked},
                 {"crc32_absent", report.crc32_absent},
                 {"replicas_checked", report.replicas_checked}};
  if (report.fingerprint != 0) fields["fingerprint"] = hex64(report.fingerprint);
  return fields;
}

}  // namespace

void print_report(const VerifyReport& report, bool data, bool sealed, Printer& printer) {
  if (printer.json()) {
    printer.record("report", report_fields(report, data));
  } else {
    print_text(report, data, sealed, printer);
  }
  printer.findings(report.findings, report.path);
  print_nonfinite(report, printer);
}

}  // namespace fsdpctl
