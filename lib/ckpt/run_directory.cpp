#include "lib/ckpt/run_directory.h"

#include <algorithm>
#include <map>
#include <utility>

namespace fsdpctl {
namespace {

// "step-100" is step 100 of the series "step-". Numbers are compared as text: they may be longer than any integer.
struct Step {
  std::string name;
  std::string number;                 // without leading zeros
  std::vector<std::string> places;    // where checkpoints are, relative to the run: "step-100", or "step-100/ckpt"
};

bool newer(const Step& a, const Step& b) {
  if (a.number.size() != b.number.size()) return a.number.size() > b.number.size();
  return a.number != b.number ? a.number > b.number : a.name > b.name;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::map<std::string, std::vector<Step>> series_of(const Source& run) {
  std::map<std::string, std::vector<Step>> series;
  for (const DirectoryEntry& entry : run.entries()) {
    const std::string& name = entry.name;
    // Hidden directories and unfinished output of our own are no steps.
    if (entry.kind != FileKind::directory || name.front() == '.' || name.find(".partial-") != std::string::npos) continue;
    const size_t digits = static_cast<size_t>(std::find_if_not(name.rbegin(), name.rend(), is_digit) - name.rbegin());
    if (digits == 0) continue;
    const std::string number = name.substr(name.size() - digits);
    const size_t zeros = std::min(number.find_first_not_of('0'), number.size() - 1);
    series[name.substr(0, name.size() - digits)].push_back({name, number.substr(zeros), {}});
  }
  for (auto& [prefix, steps] : series) std::sort(steps.begin(), steps.end(), newer);
  return series;
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
        opened.passed_over = std::move(passed_over);
        return opened;
      } catch (const Error& e) {
        if (e.code() != Exit::damaged) throw_within(step.places.front(), e);
        passed_over.push_back(step.places.front() + ": " + e.what());
      }
    }
    throw Error(Exit::damaged, "no step of this run is complete").at(run_.path()).found_only(passed_over.front());
  }

 private:
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
            .try_("fsdpctl inspect " + join_path(run_.path(), only->front().name));
      }
      only = &steps;
    }
    return only;
  }

  [[noreturn]] void refuse_several(const Step& step) const {
    std::string names;
    for (const std::string& place : step.places) names += (names.empty() ? "" : ", ") + place;
    throw Error(Exit::refused, "step holds several checkpoints")
        .at(run_.path())
        .found_only(names)
        .try_("fsdpctl inspect " + join_path(run_.path(), step.places.front()));
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
  return RunDirectory(formats, run, options).open_newest(sink);
}

}  // namespace fsdpctl
