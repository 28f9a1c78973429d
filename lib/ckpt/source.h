// Source: where a checkpoint's bytes are. One path that a user named, opened read-only.
//
// A directory and the files below it, or a single file. Every file that a checkpoint refers to is
// added by its relative name and from then on is a small number. Nothing outside the directory can be
// reached: absolute names, `..`, and symbolic links that lead out are refused (Exit::unsupported).
// The argument itself may be a link; links into the same Hugging Face cache's `blobs/` are followed;
// others only with `follow_links`. Thread-safe, adding files included. At most 64 files are open at a time
// (spool files apart, which have no name to open them by).
//
// A Source may also be of memory: then its files are stretches of it that somebody lends (in_memory(), lend(), elsewhere()).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/file.h"

namespace fsdpctl {

using SourceIndex = uint32_t;

struct SourceFile {
  std::string name;          // relative to the directory; the file's own name for a single file
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  bool spool = false;        // decoded bytes in an unnamed temporary file, not part of the checkpoint
};

struct DirectoryEntry {
  std::string name;          // relative, one level
  FileKind kind = FileKind::file;
  uint64_t size = 0;
};

struct SourceOptions {
  bool follow_links = false;
};

class Source {
 public:
  // Error(failed) when the path does not exist or cannot be read.
  static std::shared_ptr<Source> open(const std::string& path, SourceOptions options = {});
  // Of memory, without files at first. `name` stands for a path in messages.
  static std::shared_ptr<Source> in_memory(std::string name);
  ~Source();

  const std::string& path() const { return path_; }           // as the user wrote it, without trailing /
  bool is_in_memory() const { return in_memory_; }
  bool is_directory() const { return directory_; }
  // Sorted by name, not recursive; a single file lists itself. `below` is a relative directory. Links are
  // described by their targets; a dangling one is FileKind::absent.
  std::vector<DirectoryEntry> entries(std::string_view below = {}) const;
  bool has(std::string_view name) const;                      // exists as a regular file

  // Adds (or finds) a file. Error(unsupported) for names that leave the directory, Error(damaged) for
  // a file that is not there or is a Git LFS pointer to it. A single file knows only its own name.
  SourceIndex add(std::string_view name);
  // A finished file of decoded bytes; gone with the Source. It stays open: few big ones rather than many small.
  SourceIndex add_spool(FileHandle file, std::string name);
  // For a Source of memory, names being new: bytes that stay where they are, unchanged while anybody reads, as a file; and one
  // whose bytes another process has, of which nothing can be read here.
  SourceIndex lend(std::string name, std::span<const std::byte> bytes);
  SourceIndex elsewhere(std::string name, uint64_t size);
  const SourceFile& file(SourceIndex index) const { return slot(index).file; }
  size_t file_count() const { return count_.load(std::memory_order_acquire); }

  // Exactly out.size() bytes. Error(damaged) beyond the end of the file, Error(failed) on I/O errors and
  // where the file is no longer the one that was added.
  void read(SourceIndex index, uint64_t offset, std::span<std::byte> out) const;
  std::string read_all(SourceIndex index, uint64_t limit) const;   // Error(unsupported) above the limit
  void drop_cache(SourceIndex index) const;

 private:
  struct Slot {
    SourceFile file;
    std::string real_path;
    const std::byte* lent = nullptr;            // in memory; null: elsewhere, where the Source is of memory
    mutable std::shared_ptr<FileHandle> open;   // guarded by mutex_; spools are always open
  };
  using Block = std::array<Slot, 128>;

  Source() = default;
  const Slot& slot(SourceIndex index) const { return (*blocks_[index / kBlock])[index % kBlock]; }
  SourceIndex append(Slot slot);              // under mutex_
  SourceIndex append_named(Slot slot);        // takes it
  std::shared_ptr<FileHandle> handle(SourceIndex index) const;
  // Where the file of this (normalised) name really is. Error(unsupported) outside; empty when there is none.
  std::string resolve(const std::string& name) const;
  bool may_be_reached(const std::string& real) const;

  std::string path_;
  std::string root_;                          // directory that names are relative to
  std::string real_root_;
  std::string blobs_;                         // of the Hugging Face cache that the root lies in, or empty
  bool directory_ = false;
  bool in_memory_ = false;
  SourceOptions options_;

  // Slots never move, so that files may be read while others are added.
  static constexpr size_t kBlock = std::tuple_size_v<Block>;
  std::array<std::unique_ptr<Block>, 8192> blocks_;
  std::atomic<size_t> count_{0};
  mutable std::mutex mutex_;
  std::unordered_map<std::string_view, SourceIndex> by_name_;   // names as given and normalised
  std::vector<std::unique_ptr<std::string>> given_names_;
  mutable std::vector<SourceIndex> opened_;   // of slots that are open, least recently opened first
};

}  // namespace fsdpctl
