#include "tools/printer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/size_text.h"

namespace fsdpctl {
namespace {

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::error:
      return "error";
  }
  return "error";
}

Style severity_style(Severity severity) {
  switch (severity) {
    case Severity::note:
      return Style::faint;
    case Severity::warning:
      return Style::attention;
    case Severity::error:
      return Style::bad;
  }
  return Style::bad;
}

std::string painted(Style style, std::string_view text) {
  const char* code = "";
  switch (style) {
    case Style::plain:
      return std::string(text);
    case Style::strong:
      code = "1";
      break;
    case Style::good:
      code = "32";
      break;
    case Style::bad:
      code = "1;31";
      break;
    case Style::attention:
      code = "33";
      break;
    case Style::faint:
      code = "2";
      break;
  }
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

// The beginning and the end of a text that fills a screen: names in files may have megabytes.
std::string shortened(std::string_view text) {
  constexpr size_t kBegin = 400, kEnd = 200;
  if (text.size() <= kBegin + kEnd + 100) return visible(text);
  const auto continues = [&](size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };  // in a UTF-8 sequence
  size_t begin = kBegin, end = text.size() - kEnd;
  while (begin > 0 && continues(begin)) --begin;
  while (end < text.size() && continues(end)) ++end;
  return fmt::format("{} ... {} bytes ... {}", visible(text.substr(0, begin)), end - begin, visible(text.substr(end)));
}

// Text of unknown origin may not be UTF-8: JSON must be.
std::string dump(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string visible(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c < 0x20 || c == 0x7f || c1) {
      const unsigned char code = c1 ? static_cast<unsigned char>(text[++i]) : c;
      shown += fmt::format("\\x{:02x}", code);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

std::string shown_key(std::string_view key) {
  return key.empty() ? "(root)" : std::string(key);
}

std::string clipped(std::string_view text) {
  constexpr size_t kMost = 120;
  if (text.size() <= kMost) return std::string(text);
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return fmt::format("{} ... {} more", text.substr(0, end), count_text(text.size() - end, "byte"));
}

Json finding_fields(const Finding& finding) {
  Json where = Json::object();
  if (!finding.where.path.empty()) where["path"] = finding.where.path;
  if (!finding.where.key.empty()) where["key"] = finding.where.key;
  if (finding.where.range) where["range"] = {finding.where.range->first, finding.where.range->second};
  if (finding.where.offset) where["offset"] = *finding.where.offset;
  if (finding.where.rank >= 0) where["rank"] = finding.where.rank;
  Json fields = {{"severity", severity_name(finding.severity)}, {"what", finding.what}, {"where", std::move(where)}};
  if (!finding.expected.empty()) fields["expected"] = finding.expected;
  if (!finding.found.empty()) fields["found"] = finding.found;
  if (!finding.hint.empty()) fields["hint"] = finding.hint;
  return fields;
}

Printer::Printer(TextSink& out, TextSink& err, const Globals& globals) : out_(out), err_(err), globals_(globals) {}

bool Printer::colour(const TextSink& sink) const {
  if (globals_.color != When::automatic) return globals_.color == When::always;
  return sink.terminal() && !globals_.dumb_terminal;
}

std::string Printer::paint(Style style, std::string_view text) const {
  return colour(out_) ? painted(style, text) : std::string(text);
}

void Printer::text(std::string_view line) {
  if (json()) return;
  out_.write(line);
  out_.write("\n");
}

void Printer::row(std::string_view label, std::string_view line) {
  text(fmt::format("  {}{}", paint(Style::faint, fmt::format("{:<11} ", visible(label))), visible(line)));
}

void Printer::record(std::string_view message_type, Json fields) {
  if (!json()) return;
  Json object = {{"message_type", message_type}};
  object.update(fields);
  out_.write(dump(object) + "\n");
}

std::string Printer::finding_text(const Finding& finding, std::string_view program, bool colour) const {
  const std::string_view name = severity_name(finding.severity);
  std::string text =
      fmt::format("{}{}: {}\n", program, colour ? painted(severity_style(finding.severity), name) : std::string(name),
                  visible(finding.what));
  const std::string where = finding.where.text(), saw = finding.saw_text();
  if (!where.empty()) text += fmt::format("  where: {}\n", shortened(where));
  if (!saw.empty()) text += fmt::format("  saw:   {}\n", shortened(saw));
  if (!finding.hint.empty()) text += fmt::format("  try:   {}\n", shortened(finding.hint));
  return text;
}

void Printer::findings(const std::vector<Finding>& findings, std::string_view checkpoint) {
  size_t shown = 0;
  for (const Finding& finding : findings) {
    if (json()) {
      Json fields = finding_fields(finding);
      fields["checkpoint"] = checkpoint;
      record("finding", std::move(fields));
    } else if (shown < kMostFindings) {
      out_.write(finding_text(finding, "", colour(out_)));
      ++shown;
    }
  }
  if (!json() && findings.size() > shown) {
    out_.write(fmt::format("... and {} more; --json lists all\n", count_text(findings.size() - shown)));
  }
}

void Printer::remark(const Finding& finding) {
  if (json()) {
    record("finding", finding_fields(finding));
  } else if (!globals_.quiet || finding.severity == Severity::error) {
    err_.write(finding_text(finding, "fsdpctl: ", colour(err_)));
    err_.flush();  // long work may follow
  }
}

void Printer::remarks(const std::vector<Finding>& findings, size_t most) {
  size_t shown = 0;
  for (const Finding& finding : findings) {
    if (json() || shown < most) remark(finding);
    ++shown;
  }
  if (!json() && !globals_.quiet && shown > most) {
    err_.write(fmt::format("fsdpctl: ... and {} more; --json lists all\n", count_text(shown - most)));
  }
}

void Printer::error(const Error& error) {
  flush();
  if (json()) {
    Json object = {{"message_type", "error"}, {"code", static_cast<int>(error.code())}};
    object.update(finding_fields(error.finding()));
    err_.write(dump(object) + "\n");
  } else {
    err_.write(finding_text(error.finding(), "fsdpctl: ", colour(err_)));
  }
  err_.flush();
}

void Printer::detail(int level, std::string_view line) {
  if (json() || globals_.quiet || globals_.verbose < level) return;
  err_.write(fmt::format("fsdpctl: {}\n", visible(line)));
  err_.flush();  // long work may follow
}

void Printer::raw_out(std::string_view text) {
  out_.write(text);
}

void Printer::flush() {
  out_.flush();
  err_.flush();
}

// ---- progress

Progress::Progress(Printer& printer, std::string label, Unit unit)
    : printer_(printer), label_(std::move(label)), unit_(unit) {
  const Globals& globals = printer.globals();
  const bool never = globals.progress == When::never || globals.quiet;
  const bool terminal = printer.err_.terminal() && !globals.dumb_terminal && !globals.json;
  live_ = !never && terminal;
  plain_ = globals.progress == When::always && !globals.quiet && !terminal;
}

std::string Progress::line(uint64_t done, uint64_t total, double seconds) const {
  const double fraction = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const double speed = seconds > 0 ? static_cast<double>(done - std::min(first_, done)) / seconds : 0;
  const bool steps = unit_ == Unit::steps;
  std::string text = fmt::format("{}  {:.0f}%  {} / {}", label_, 100 * fraction, steps ? std::to_string(done) : size_text(done),
                                 steps ? fmt::format("{} steps", total) : size_text(total));
  if (speed >= 1 || (steps && speed > 0)) {
    const uint64_t left = static_cast<uint64_t>(static_cast<double>(total - std::min(done, total)) / speed);
    if (!steps) text += fmt::format("  {}/s", size_text(static_cast<uint64_t>(speed)));
    text += fmt::format("  {}:{:02} left", left / 60, left % 60);
  }
  return text;
}

void Progress::update(uint64_t done, uint64_t total) {
  done_ = done;
  if (!live_ && !plain_) return;
  const Clock::time_point now = Clock::now();
  const auto pause = live_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10'000);
  if (drawn_ && now - last_ < pause) return;
  if (!drawn_ && !live_ && now - begin_ < pause && done < total) return;  // short work needs no line
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  if (live_) {
    printer_.err_.write("\r\x1b[K" + line(done, total, seconds));
  } else if (printer_.json()) {
    const std::string unit = unit_ == Unit::steps ? "steps" : "bytes";
    printer_.err_.write(
        dump({{"message_type", "status"}, {"action", label_}, {unit + "_done", done}, {unit + "_total", total}}) + "\n");
  } else {
    printer_.err_.write(line(done, total, seconds) + "\n");
  }
  printer_.err_.flush();
}

void Progress::erase() {
  if (!live_ || !drawn_) return;
  printer_.err_.write("\r\x1b[K");
  printer_.err_.flush();
}

Progress::~Progress() {
  try {
    if (live_ && drawn_) printer_.err_.write("\r\x1b[K");
    const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    if (done_ > 0 && unit_ == Unit::bytes) printer_.detail(1, fmt::format("{}: {} in {:.1f} s", label_, size_text(done_), seconds));
    printer_.err_.flush();
  } catch (const Error&) {  // stderr is gone: nothing left to erase
  }
}

}  // namespace fsdpctl
