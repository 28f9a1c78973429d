#include "lib/ckpt/run_directory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lib/base/shell_quoted.h"
#include "lib/ckpt/step_name.h"

namespace fsdpctl {
namespace {

constexpr size_t kMostCandidates = 1000;   // entries of a directory that are looked into for its refusal
constexpr int kSureStrength = 90;          // a file is of this format, not only in its container (ZIP, pickle)
constexpr size_t kMostNamed = 8;           // of what is found there

struct Step {
  std::string name;
  StepName parsed;
  std::vector<std::string> places;    // where checkpoints are, relative to the run: "step-100", or "step-100/ckpt"
};

bool newer(const Step& a, const Step& b) {
  if (earlier(b.parsed, a.parsed)) return true;
  return !earlier(a.parsed, b.parsed) && a.name > b.name;
}

// Hidden directories and unfinished output of our own are neither steps nor candidates.
bool is_finished(const std::string& name) {
  return name.front() != '.' && name.find(".partial-") == std::string::npos;
}

std::map<std::string, std::vector<Step>> series_of(const Source& run) {
  std::map<std::string, std::vector<Step>> series;
  for (const DirectoryEntry& entry : run.entries()) {
    if (entry.kind != FileKind::directory || !is_finished(entry.name)) continue;
    if (auto parsed = parse_step_name(entry.name)) {
      std::vector<Step>& steps = series[parsed->series];
      steps.push_back({entry.name, *std::move(parsed), {}});
    }
  }
  for (auto& [name, steps] : series) std::sort(steps.begin(), steps.end(), newer);
  return series;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMostNamed; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMostNamed) text += " and " + std::to_string(names.size() - kMostNamed) + " more";
  return text;
}

// The one that is most probably meant: people look for the model among optimizers, schedulers and random states.
const std::string& likeliest(const std::vector<std::string>& names) {
  const auto model = std::find_if(names.begin(), names.end(), [](const std::string& name) { return name.find("model") != std::string::npos; });
  return model == names.end() ? names.front() : *model;
}

class RunDirectory {
 public:
  RunDirectory(const FormatList& formats, const Source& run, OpenOptions options)
      : formats_(formats), run_(run), options_(options), series_(series_of(run)) {}

  std::optional<Opened> open_newest(FindingSink& sink) {
    std::vector<Step>* steps = only_series();
    if (steps == nullptr) return std::nullopt;
    std::vector<std::string> passed_over;
    for (Step& step : *steps) {
      look_into(step);
      if (step.places.size() > 1) refuse_several(step);
      if (step.places.empty()) {
        passed_over.push_back(step.name + ": holds no checkpoint");
        continue;
      }
      try {
        Opened opened = open_step(step.places.front(), sink);
        for (const std::string& passed : passed_over) {
          sink.report(warning("newer step is not complete and was passed over").at(run_.path()).found_only(passed));
        }
        report_ignored(sink);
        opened.passed_over = std::move(passed_over);
        return opened;
      } catch (const Error& e) {
        if (e.code() != Exit::damaged) throw_within(step.places.front(), e);
        passed_over.push_back(step.places.front() + ": " + e.what());
      }
    }
    throw Error(Exit::damaged, "no step of this run is complete").at(run_.path()).found_only(passed_over.front());
  }

  // Steps that are files lie beside those that are directories: which of them is the newest is not for us to say.
  void report_ignored(FindingSink& sink) const {
    std::vector<std::string> ignored;
    for (const DirectoryEntry& entry : run_.entries()) {
      if (entry.kind != FileKind::file || !is_finished(entry.name) || ignored.size() > kMostNamed) continue;
      if (parse_step_name(entry.name.substr(0, entry.name.rfind('.'))) && is_candidate(entry)) ignored.push_back(entry.name);
    }
    if (ignored.empty()) return;
    sink.report(warning("files that are named as steps lie beside the directories; they were not looked at").at(run_.path()).found_only(listed(ignored)));
  }

  // For what is no run: the checkpoints that it holds, by name. Nothing is chosen.
  void refuse_candidates() {
    std::vector<std::string> candidates;
    size_t looked_into = 0;
    for (const DirectoryEntry& entry : run_.entries()) {
      if (!is_finished(entry.name) || (entry.kind != FileKind::directory && entry.kind != FileKind::file)) continue;
      if (++looked_into > kMostCandidates) break;
      if (is_candidate(entry)) candidates.push_back(entry.name);
    }
    if (candidates.empty()) return;
    throw Error(Exit::refused, "directory holds checkpoints and is none itself")
        .at(run_.path())
        .found_only(listed(candidates))
        .try_("fsdpctl inspect " + shell_quoted(join_path(run_.path(), likeliest(candidates))));
  }

 private:
  bool is_candidate(const DirectoryEntry& entry) const {
    try {
      const auto recognized = recognize(formats_, *source_of(entry.name));
      return recognized && (entry.kind == FileKind::directory || recognized->match.strength >= kSureStrength);
    } catch (const Error&) {
      return false;   // unreadable, a link that leads out: nothing to advise
    }
  }

  bool is_checkpoint(const std::string& place) {
    run_.entries(place);   // refuses links that lead outside
    try {
      return recognize(formats_, *source_of(place)).has_value();
    } catch (const Error& e) {
      return e.code() == Exit::damaged;   // known well enough to be found damaged
    }
  }

  std::shared_ptr<Source> source_of(const std::string& place) const {
    return Source::open(join_path(run_.path(), place), {options_.follow_links});
  }

  void look_into(Step& step) {
    if (!step.places.empty()) return;
    if (is_checkpoint(step.name)) {
      step.places.push_back(step.name);
      return;
    }
    for (const DirectoryEntry& entry : run_.entries(step.name)) {
      const std::string place = join_path(step.name, entry.name);
      if (entry.kind == FileKind::directory && is_checkpoint(place)) step.places.push_back(place);
    }
  }

  // The steps of the one series that holds checkpoints; null where none does.
  std::vector<Step>* only_series() {
    std::vector<Step>* only = nullptr;
    for (auto& [prefix, steps] : series_) {
      const bool holds = std::any_of(steps.begin(), steps.end(), [&](Step& step) {
        look_into(step);
        return !step.places.empty();
      });
      if (!holds) continue;
      if (only != nullptr) {
        throw Error(Exit::refused, "run directory holds several series of steps")
            .at(run_.path())
            .found_only(only->front().name + " and " + steps.front().name)
            .try_("fsdpctl inspect " + shell_quoted(join_path(run_.path(), only->front().name)));
      }
      only = &steps;
    }
    return only;
  }

  [[noreturn]] void refuse_several(const Step& step) const {
    throw Error(Exit::refused, "step holds several checkpoints")
        .at(run_.path())
        .found_only(listed(step.places))
        .try_("fsdpctl inspect " + shell_quoted(join_path(run_.path(), likeliest(step.places))));
  }

  [[noreturn]] static void throw_within(const std::string& place, const Error& e) {
    Finding finding = e.finding();
    finding.where.path = join_path(place, finding.where.path);
    throw Error(std::move(finding));
  }

  // Complete means: opens strictly, which finds missing files and pieces beyond their ends.
  Opened open_step(const std::string& place, FindingSink& sink) const {
    std::shared_ptr<Source> source = source_of(place);
    const std::optional<Recognized> recognized = recognize(formats_, *source);
    if (!recognized) throw Error(Exit::damaged, "checkpoint is gone").at(place);
    FindingSink strict;
    Opened opened;
    opened.checkpoint = recognized->format->open(std::move(source), strict);
    opened.format = recognized->format;
    opened.match = recognized->match;
    opened.chosen = place;
    for (const Finding& warning : strict.all()) sink.report(warning);
    return opened;
  }

  const FormatList& formats_;
  const Source& run_;
  OpenOptions options_;
  std::map<std::string, std::vector<Step>> series_;
};

}  // namespace

std::optional<Opened> open_newest_step(const FormatList& formats, const Source& run, FindingSink& sink, OpenOptions options) {
  RunDirectory directory(formats, run, options);
  if (auto opened = directory.open_newest(sink)) return opened;
  directory.refuse_candidates();
  return std::nullopt;
}

}  // namespace fsdpctl
