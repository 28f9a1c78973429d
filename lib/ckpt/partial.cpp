#include "lib/ckpt/partial.h"

#include <fmt/format.h>

#include <set>

#include "lib/base/checksum.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kInfix = ".partial-";

}  // namespace

std::string partial_id(const Checkpoint& checkpoint, const FilePlan& plan, std::string_view arguments) {
  std::string text = fmt::format("{}\n", arguments);
  // By name: the order in which files were met says nothing.
  Source& source = *checkpoint.source;
  std::set<std::string> names(checkpoint.data_files.begin(), checkpoint.data_files.end());
  for (const Piece& piece : checkpoint.pieces) {
    const SourceFile& file = source.file(piece.source);
    if (!file.spool) names.insert(file.name);
  }
  for (const std::string& name : names) {
    const SourceFile& file = source.file(source.add(name));
    text += fmt::format("source {} {} {}\n", name, file.size, file.mtime_ns);
  }
  for (const auto& file : plan) text += fmt::format("file {} {} {}\n", file->path(), file->size(), file->item_count());
  return hex64(crc64(std::as_bytes(std::span(text))));
}

PartialDirectory::PartialDirectory(std::string path, FileLock lock) : path_(std::move(path)), lock_(std::move(lock)) {
  continued_ = stat_path(journal()).kind == FileKind::file;
}

PartialDirectory PartialDirectory::open(const std::string& output, const std::string& id) {
  const std::string path = path_for(output, id);
  const std::string lock_path = join_path(path, "lock");
  // Another run may finish and remove the directory between our steps; then it is simply made again.
  for (int attempt = 0; attempt < 10; ++attempt) {
    if (stat_path(path).kind == FileKind::absent) make_directories(path);
    std::optional<FileLock> lock = FileLock::try_lock(lock_path);
    if (!lock) {
      throw Error(Exit::failed, "output is being written by another run").at(path).try_("wait for it to end; the same command then continues or refuses");
    }
    if (stat_path(lock_path).kind == FileKind::file) return {path, *std::move(lock)};
  }
  throw Error(Exit::failed, "partial output keeps vanishing").at(path);
}

void PartialDirectory::start_again() {
  for (const std::string& part : {journal(), manifest(), data()}) remove_tree(part);
  continued_ = false;
}

void PartialDirectory::close_journal() {
  remove_tree(journal());
  sync_directory(path_);
}

// The journal goes first: without it a half-removed directory cannot be taken for finished work.
void PartialDirectory::remove() {
  start_again();
  remove_tree(path_);
}

std::vector<std::string> other_partials(const std::string& output, const std::string& id) {
  const std::string prefix = base_name(output) + std::string(kInfix);
  std::vector<std::string> found;
  try {
    for (std::string& name : list_directory(parent_path(output))) {
      if (name.starts_with(prefix) && name != prefix + id) found.push_back(std::move(name));
    }
  } catch (const Error&) {
    return {};   // a directory that may be written but not listed
  }
  return found;
}

}  // namespace fsdpctl
