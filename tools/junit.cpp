#include "tools/junit.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/printer.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kBegin = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"fsdpctl verify\"";

// XML 1.0 has no way to write most control characters, so they are made visible; bytes that are no UTF-8 become '?'.
std::string escaped(std::string_view text) {
  const std::string shown = visible(text);
  std::string xml;
  for (size_t i = 0; i < shown.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(shown[i]);
    const size_t length = c < 0x80 ? 1 : c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 0;
    bool valid = length > 0 && c < 0xf5 && i + length <= shown.size();
    for (size_t k = 1; valid && k < length; ++k) valid = (static_cast<unsigned char>(shown[i + k]) & 0xc0) == 0x80;
    // Surrogates (ED A0..BF) are no characters of XML.
    if (valid && c == 0xed && static_cast<unsigned char>(shown[i + 1]) >= 0xa0) valid = false;
    if (!valid) {
      xml += '?';
      continue;
    }
    switch (c) {
      case '&':
        xml += "&amp;";
        break;
      case '<':
        xml += "&lt;";
        break;
      case '>':
        xml += "&gt;";
        break;
      case '"':
        xml += "&quot;";
        break;
      default:
        xml += shown.substr(i, length);
    }
    i += length - 1;
  }
  return xml;
}

std::string finding_line(const Finding& finding) {
  std::string line = finding.what;
  const std::string where = finding.where.text(), saw = finding.saw_text();
  if (!where.empty()) line += "; where: " + where;
  if (!saw.empty()) line += "; saw: " + saw;
  if (!finding.hint.empty()) line += "; try: " + finding.hint;
  return line;
}

std::string lines(const VerifyReport& report, bool errors) {
  std::string text;
  for (const Finding& finding : report.findings) {
    if ((finding.severity == Severity::error) == errors) text += escaped(finding_line(finding)) + "\n";
  }
  return text;
}

// JUnit tells a test that failed from one that could not be run: not found, not readable.
bool could_not_run(const VerifyReport& report) {
  return report.exit_code() == Exit::failed;
}

}  // namespace

bool looks_like_junit(std::string_view text) {
  return text.starts_with(kBegin);
}

std::string junit_text(const std::vector<VerifyReport>& reports) {
  const auto failures = std::count_if(reports.begin(), reports.end(),
                                      [](const VerifyReport& r) { return r.has_errors() && !could_not_run(r); });
  const auto errors = std::count_if(reports.begin(), reports.end(), could_not_run);
  std::string text(kBegin);
  text += fmt::format(" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"0\">\n", reports.size(), failures, errors);
  for (const VerifyReport& report : reports) {
    text += fmt::format("  <testcase classname=\"fsdpctl.verify\" name=\"{}\">\n", escaped(report.path));
    const auto first = std::find_if(report.findings.begin(), report.findings.end(),
                                    [](const Finding& f) { return f.severity == Severity::error; });
    if (first != report.findings.end()) {
      const std::string_view tag = could_not_run(report) ? "error" : "failure";
      text += fmt::format("    <{0} message=\"{1}\">{2}</{0}>\n", tag, escaped(first->what), lines(report, true));
    }
    const std::string others = lines(report, false);
    if (!others.empty()) text += fmt::format("    <system-out>{}</system-out>\n", others);
    text += "  </testcase>\n";
  }
  return text + "</testsuite>\n";
}

}  // namespace fsdpctl
