#include "lib/train/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "lib/base/finding.h"

namespace fsdpctl::train {

RunFolder::RunFolder(std::string path) : path_(std::move(path)) {
  if (stat_path(path_).kind == FileKind::absent) make_directory(path_);
  std::optional<FileLock> lock = FileLock::try_lock(join_path(path_, "train.lock"));
  if (!lock) throw Error(Exit::failed, "another run is at work in this directory").at(path_);
  lock_.emplace(std::move(*lock));
}

std::optional<uint64_t> RunFolder::newest_step() const {
  std::optional<uint64_t> newest;
  for (const std::string& name : list_directory(path_)) {
    if (const auto step = step_of(name)) newest = std::max(newest.value_or(0), *step);
  }
  return newest;
}

std::string step_path(const std::string& directory, uint64_t step) { return join_path(directory, fmt::format("step-{}", step)); }

std::optional<uint64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  uint64_t step = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto [read, failure] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return failure == std::errc() && read == end ? std::optional(step) : std::nullopt;
}

}  // namespace fsdpctl::train
