// Source: where a checkpoint's bytes are. One path that a user named, opened read-only.
//
// A directory and the files below it, or a single file. Every file that a checkpoint refers to is
// added by its relative name and from then on is a small number. Nothing outside the directory can be
// reached: absolute names, `..`, and symbolic links that lead out are refused (Exit::unsupported).
// The argument itself may be a link; links into the same Hugging Face cache's `blobs/` are followed;
// others only with `follow_links`. Reading is thread-safe; adding files is not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
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
  ~Source();

  const std::string& path() const { return path_; }           // as the user wrote it, without trailing /
  bool is_directory() const { return directory_; }
  // Sorted by name, not recursive; a single file lists itself. `below` is a relative directory.
  std::vector<DirectoryEntry> entries(std::string_view below = {}) const;
  bool has(std::string_view name) const;                      // exists as a regular file

  // Adds (or finds) a file. Error(unsupported) for names that leave the directory, Error(damaged) for
  // a file that is not there.
  SourceIndex add(std::string_view name);
  SourceIndex add_spool(FileHandle file, std::string name);
  const SourceFile& file(SourceIndex index) const { return *files_[index]; }
  size_t file_count() const { return files_.size(); }

  // Exactly out.size() bytes. Error(damaged) beyond the end of the file, Error(failed) on I/O errors.
  void read(SourceIndex index, uint64_t offset, std::span<std::byte> out) const;
  std::string read_all(SourceIndex index, uint64_t limit) const;   // Error(unsupported) above the limit
  void drop_cache(SourceIndex index) const;

 private:
  Source() = default;
  struct Open;
  std::shared_ptr<FileHandle> handle(SourceIndex index) const;
  std::string resolve(std::string_view name) const;

  std::string path_;
  std::string root_;                        // directory that names are relative to
  std::string real_root_;
  bool directory_ = false;
  SourceOptions options_;
  std::vector<std::unique_ptr<SourceFile>> files_;
  std::map<std::string, SourceIndex, std::less<>> by_name_;
  mutable std::mutex mutex_;                // guards the cache of open handles (at most 64)
  mutable std::vector<std::pair<SourceIndex, std::shared_ptr<FileHandle>>> open_;
  std::map<SourceIndex, std::shared_ptr<FileHandle>> spools_;
};

}  // namespace fsdpctl
