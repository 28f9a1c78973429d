// Printer: the only code that knows terminals, colour, JSON Lines and the progress line.
//
// stdout carries the answer and nothing else: text for people, or with --json one object per line, each with a
// `message_type` (docs/json.md). stderr carries warnings, errors and progress. In JSON mode text() prints nothing, in
// text mode record() prints nothing, so a command says both and the mode picks.
//
// Names come from files that anyone may have made: control characters in text are shown as \xNN, so that no
// name can move the cursor or fake a line. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/finding.h"
#include "tools/environment.h"
#include "tools/text_sink.h"

namespace fsdpctl {

using Json = nlohmann::ordered_json;

enum class Style : uint8_t { plain, strong, good, bad, attention, faint };

class Printer {
 public:
  static constexpr size_t kMostFindings = 20;  // in text; JSON has all

  Printer(TextSink& out, TextSink& err, const Globals& globals);

  bool json() const { return globals_.json; }
  bool closed() const { return out_.closed(); }  // nobody reads stdout any more: stop listing
  const Globals& globals() const { return globals_; }

  // ---- stdout
  void row(std::string_view label,
           std::string_view text);   // an indented line of facts; control characters made visible
  void text(std::string_view line);  // adds the newline
  void record(std::string_view message_type, Json fields);
  std::string paint(Style style, std::string_view text) const;  // for text()
  // Findings as part of the answer (verify): all of them in JSON, the first kMostFindings in text.
  void findings(const std::vector<Finding>& findings, std::string_view checkpoint);

  // ---- stderr
  // Warnings beside the answer; in JSON mode they are `finding` records on stdout. -q drops all but errors.
  void remark(const Finding& finding);
  void remarks(const std::vector<Finding>& findings, size_t most = kMostFindings);  // the first `most` in text
  void error(const Error& error);                                                   // in JSON an `error` record
  void detail(int level, std::string_view line);  // shown with -v (level 1) or -vv (2)
  void raw_out(std::string_view text);            // help, version, generated files: as it is, in either mode
  void flush();

 private:
  friend class Progress;
  std::string finding_text(const Finding& finding, std::string_view program, bool colour) const;
  bool colour(const TextSink& sink) const;

  TextSink& out_;
  TextSink& err_;
  Globals globals_;
};

// A line on stderr while work goes on: at most ten times a second on a terminal, erased at the end; with
// --progress=always elsewhere a plain line every ten seconds (`status` records in JSON mode). With -v, how much was
// done in what time, at the end.
class Progress {
 public:
  enum class Unit : uint8_t { bytes, steps };
  Progress(Printer& printer, std::string label, Unit unit = Unit::bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  void update(uint64_t done, uint64_t total);
  void start_at(uint64_t done) { first_ = done; }  // what was done before, which says nothing of the speed
  void erase();                                    // before other text comes; until the next update
  const std::string& label() const { return label_; }
  std::function<void(uint64_t, uint64_t)> callback() {
    return [this](uint64_t done, uint64_t total) { update(done, total); };
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string line(uint64_t done, uint64_t total, double seconds) const;

  Printer& printer_;
  std::string label_;
  const Unit unit_;
  uint64_t first_ = 0;
  bool live_, plain_;
  bool drawn_ = false;
  uint64_t done_ = 0;
  Clock::time_point begin_ = Clock::now(), last_;
};

// "a\x1bb" for control characters; everything else as it is.
std::string visible(std::string_view text);
// A key or path in the tree; what lies at the root has an empty one.
std::string shown_key(std::string_view key);
// The beginning of a value that may be long, and how much is left out: JSON has it whole.
std::string clipped(std::string_view text);
// The fields of a finding, as in every JSON record that has one.
Json finding_fields(const Finding& finding);

}  // namespace fsdpctl
