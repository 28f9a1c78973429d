#include "lib/train/old_saves.h"

#include <algorithm>
#include <utility>

#include "lib/base/file.h"
#include "lib/base/finding.h"
#include "lib/ckpt/manifest.h"
#include "lib/ckpt/step_name.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kMostManifest = 1 << 30;

struct Save {
  std::string name;
  StepName step;
};

// Did training write this, as its manifest tells?
bool is_of_training(const std::string& path) {
  const FileStat there = stat_path(path);
  if (there.is_link || (there.kind != FileKind::directory && there.kind != FileKind::file)) return false;
  const std::string manifest = manifest_path(path, there.kind == FileKind::directory);
  if (stat_path(manifest).kind != FileKind::file) return false;
  try {
    return parse_manifest(read_text(manifest, kMostManifest), base_name(manifest)).source_format == "training";
  } catch (const Error&) {
    return false;
  }
}

// In an order in which what is left half-removed is never taken for a checkpoint.
void remove_save(const std::string& path) {
  const bool directory = stat_path(path).kind == FileKind::directory;
  if (!directory) {
    remove_tree(path);
    remove_tree(manifest_path(path, false));
    return;
  }
  const std::string hidden = join_path(parent_path(path), "." + base_name(path) + ".removed");
  remove_tree(hidden);   // of a run that was killed here
  rename_new(path, hidden);
  remove_tree(hidden);
}

}  // namespace

std::vector<std::string> remove_old_saves(const std::string& newest, uint64_t keep) {
  std::vector<std::string> removed;
  const std::optional<StepName> step = parse_step_name(base_name(newest));
  if (keep == 0 || !step) return removed;
  const std::string run = parent_path(newest);
  std::vector<Save> older;
  for (std::string& name : list_directory(run)) {
    std::optional<StepName> parsed = parse_step_name(name);
    if (!parsed || parsed->series != step->series || !earlier(*parsed, *step)) continue;
    if (is_of_training(join_path(run, name))) older.push_back({std::move(name), *std::move(parsed)});
  }
  std::sort(older.begin(), older.end(), [](const Save& a, const Save& b) { return earlier(b.step, a.step); });   // the newest first
  for (size_t i = keep - 1; i < older.size(); ++i) {
    removed.push_back(join_path(run, older[i].name));
    remove_save(removed.back());
  }
  return removed;
}

}  // namespace fsdpctl::train
