#include "lib/ckpt/partial.h"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <thread>

#include "lib/base/checksum.h"
#include "lib/base/shell_quoted.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kInfix = ".partial-", kWorkerJournal = "journal-";
constexpr auto kWait = std::chrono::milliseconds(50);

std::vector<std::string> worker_journals(const std::string& directory) {
  std::vector<std::string> found;
  for (const std::string& name : list_directory(directory)) {
    if (name.starts_with(kWorkerJournal)) found.push_back(join_path(directory, name));
  }
  return found;
}

// Whether a directory holds only what we make: files of one name, and directories. Writing to anything else would change
// something that is not ours.
bool is_plain(const std::string& directory) {
  for (const std::string& name : list_directory(directory)) {
    const std::string path = join_path(directory, name);
    const FileStat there = stat_path(path);
    if (there.is_link) return false;
    if (there.kind == FileKind::absent) continue;   // another worker's, gone by now
    if (there.kind == FileKind::directory ? !is_plain(path) : there.kind != FileKind::file || there.names != 1) return false;
  }
  return true;
}

// The lock of a partial directory, which is made if it is not there; nullopt while others hold it.
std::optional<FileLock> lock_directory(const std::string& path, FileLock::Mode mode) {
  const std::string lock_path = join_path(path, "lock");
  // Another run may finish and remove the directory between our steps; then it is simply made again.
  for (int attempt = 0; attempt < 10; ++attempt) {
    const FileStat there = stat_path(path);
    if (there.is_link) throw Error(Exit::failed, "partial output is a symbolic link").at(path).try_("rm " + shell_quoted(path));
    if (there.kind == FileKind::absent) make_directories(path);
    std::optional<FileLock> lock = FileLock::try_lock(lock_path, mode);
    if (!lock || stat_path(lock_path).kind == FileKind::file) return lock;
  }
  throw Error(Exit::failed, "partial output keeps vanishing").at(path);
}

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
  continued_ = is_plain(path_) && (stat_path(journal()).kind == FileKind::file || !worker_journals(path_).empty());
}

PartialDirectory PartialDirectory::open(const std::string& output, const std::string& id) {
  const std::string path = path_for(output, id);
  std::optional<FileLock> lock = lock_directory(path, FileLock::Mode::exclusive);
  if (lock) return {path, *std::move(lock)};
  throw Error(Exit::failed, "output is being written by another run").at(path).found_only("its lock; once it has ended, the same command continues or refuses");
}

std::optional<PartialDirectory> PartialDirectory::open_after_workers(const std::string& output, const std::string& id) {
  const std::string path = path_for(output, id);
  if (stat_path(path).kind == FileKind::absent) return std::nullopt;   // another one was the last, and has published
  std::optional<FileLock> lock = lock_directory(path, FileLock::Mode::exclusive);
  if (!lock) return std::nullopt;
  return PartialDirectory(path, *std::move(lock));
}

Journals PartialDirectory::journals() const { return {journal(), worker_journals(path_)}; }

void PartialDirectory::start_again() {
  for (const std::string& part : worker_journals(path_)) remove_tree(part);
  for (const std::string& part : {journal(), manifest(), data()}) remove_tree(part);
  continued_ = false;
}

void PartialDirectory::close_journal() {
  for (const std::string& part : worker_journals(path_)) remove_tree(part);
  remove_tree(journal());
  sync_directory(path_);
}

WorkerDirectory::WorkerDirectory(std::string path, std::string name, FileLock shared, FileLock own)
    : path_(std::move(path)), name_(std::move(name)), shared_(std::move(shared)), own_(std::move(own)) {}

WorkerDirectory WorkerDirectory::open(const std::string& output, const std::string& id, const Share& share,
                                      const std::atomic<bool>* cancel) {
  const std::string path = PartialDirectory::path_for(output, id);
  const std::string name = fmt::format("{}-of-{}", share.index, share.count);
  while (true) {
    if (cancel != nullptr && cancel->load()) throw Error(Exit::interrupted, "interrupted");
    std::optional<FileLock> shared = lock_directory(path, FileLock::Mode::shared);
    if (!shared) {
      std::this_thread::sleep_for(kWait);
      continue;
    }
    if (!is_plain(path)) throw Error(Exit::failed, "partial output holds links or special files").at(path).try_("rm -r " + shell_quoted(path));
    std::optional<FileLock> own = FileLock::try_lock(join_path(path, "worker-" + name));
    if (own) return {path, name, *std::move(shared), *std::move(own)};
    throw Error(Exit::failed, "another process does the same share").at(path).key("--worker").saw("an index of its own for every process", name);
  }
}

Journals WorkerDirectory::journals() const {
  Journals all = {join_path(path_, std::string(kWorkerJournal) + name_), worker_journals(path_)};
  std::erase(all.others, all.own);
  const std::string of_whole = join_path(path_, "journal");
  if (stat_path(of_whole).kind == FileKind::file) all.others.push_back(of_whole);
  return all;
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
