#include "lib/base/finding.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsdpctl {
namespace {

void append(std::string& text, const std::string& part) {
  if (part.empty()) return;
  if (!text.empty()) text += ", ";
  text += part;
}

}  // namespace

std::string Location::text() const {
  std::string text = path;
  append(text, key);
  if (range) append(text, fmt::format("bytes [{}, {})", range->first, range->second));
  if (offset) append(text, fmt::format("offset {}", *offset));
  if (rank >= 0) append(text, fmt::format("rank {}", rank));
  return text;
}

Finding& Finding::at(std::string path) { where.path = std::move(path); return *this; }
Finding& Finding::key(std::string key) { where.key = std::move(key); return *this; }
Finding& Finding::range(uint64_t begin, uint64_t end) { where.range = {begin, end}; return *this; }
Finding& Finding::offset(uint64_t offset) { where.offset = offset; return *this; }
Finding& Finding::saw(std::string expected_text, std::string found_text) {
  expected = std::move(expected_text);
  found = std::move(found_text);
  return *this;
}
Finding& Finding::found_only(std::string found_text) { found = std::move(found_text); return *this; }
Finding& Finding::try_(std::string text) { hint = std::move(text); return *this; }

std::string Finding::saw_text() const {
  std::string text;
  if (!expected.empty()) append(text, "expected " + expected);
  if (!found.empty()) append(text, "found " + found);
  return text;
}

Error::Error(Exit code, std::string what) : Error(error(code, std::move(what))) {}
Error::Error(Finding finding) : finding_(std::move(finding)) { refresh(); }

void Error::refresh() {
  text_ = finding_.what;
  std::string detail = finding_.where.text();
  std::string saw = finding_.saw_text();
  if (!saw.empty()) detail += detail.empty() ? saw : "; " + saw;
  if (!detail.empty()) text_ += " (" + detail + ")";
}

Error& Error::in_file(std::string_view path) {
  if (finding_.where.path.empty()) finding_.where.path = path;
  refresh();
  return *this;
}

Error& Error::in_tensor(std::string_view key) {
  if (finding_.where.key.empty()) finding_.where.key = key;
  refresh();
  return *this;
}

Error&& Error::at(std::string path) && { finding_.at(std::move(path)); refresh(); return std::move(*this); }
Error&& Error::key(std::string key) && { finding_.key(std::move(key)); refresh(); return std::move(*this); }
Error&& Error::range(uint64_t begin, uint64_t end) && { finding_.range(begin, end); refresh(); return std::move(*this); }
Error&& Error::offset(uint64_t offset) && { finding_.offset(offset); refresh(); return std::move(*this); }
Error&& Error::saw(std::string expected, std::string found) && {
  finding_.saw(std::move(expected), std::move(found));
  refresh();
  return std::move(*this);
}
Error&& Error::found_only(std::string found) && { finding_.found_only(std::move(found)); refresh(); return std::move(*this); }
Error&& Error::try_(std::string hint) && { finding_.try_(std::move(hint)); return std::move(*this); }

void FindingSink::report(Finding finding) {
  if (strict_ && finding.severity == Severity::error) throw Error(std::move(finding));
  findings_.push_back(std::move(finding));
}

bool FindingSink::has_errors() const {
  return std::any_of(findings_.begin(), findings_.end(),
                     [](const Finding& f) { return f.severity == Severity::error; });
}

Finding warning(std::string what) {
  Finding f;
  f.severity = Severity::warning;
  f.code = Exit::ok;
  f.what = std::move(what);
  return f;
}

Finding note(std::string what) {
  Finding f = warning(std::move(what));
  f.severity = Severity::note;
  return f;
}

Finding error(Exit code, std::string what) {
  Finding f;
  f.code = code;
  f.what = std::move(what);
  return f;
}

}  // namespace fsdpctl
