#include "tools/beside.h"

#include <algorithm>

#include "formats/unread_files.h"
#include "lib/base/file.h"

namespace fsdpctl {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_unfinished(const std::string& name) {
  return name.ends_with(".tmp") || name.find(".partial-") != std::string::npos;
}

}  // namespace

std::vector<std::string> files_beside(const Opened& opened) {
  const Checkpoint& checkpoint = opened.checkpoint;
  if (!checkpoint.source->is_directory()) return {};
  const std::string manifest = base_name(manifest_path(checkpoint.source->path(), true));
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : checkpoint.source->entries()) {
    const std::string& name = entry.name;
    if (entry.kind != FileKind::file || name.front() == '.' || name == manifest || is_unfinished(name)) continue;
    if (contains(checkpoint.data_files, name) || contains(checkpoint.stale_files, name)) continue;
    if (!opened.format->is_part(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void report_beside(const Opened& opened, FindingSink& sink) {
  std::vector<std::string> names = files_beside(opened);
  const bool reported = std::any_of(sink.all().begin(), sink.all().end(), is_unread_files_report);
  if (reported) std::erase_if(names, is_other_checkpoint_file);
  if (names.empty()) return;
  sink.report(warning("files beside the checkpoint are not carried")
                  .at(opened.checkpoint.source->path())
                  .found_only(some_names(names)));
}

std::vector<Change> changes_of_beside(const Opened& opened) {
  std::vector<Change> changes;
  for (std::string& name : files_beside(opened)) {
    changes.push_back({"not carried", std::move(name), "a file beside the checkpoint"});
  }
  return changes;
}

}  // namespace fsdpctl
