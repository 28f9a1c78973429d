// Files and directories: the only door to the file system, so that tests can make it fail.
//
// Every call throws Error(Exit::failed) with the path and the system's words, or says otherwise.
// Paths are byte strings (UTF-8 by convention). FileHandle is movable, closes itself, and may be read
// or written at different offsets from several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdpctl {

enum class FileKind : uint8_t { absent, file, directory, other };

struct FileStat {
  FileKind kind = FileKind::absent;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  uint64_t inode = 0;
  uint64_t names = 0;      // hard links
  bool is_link = false;    // the name itself is a symbolic link; the rest describes its target
};

class FileHandle {
 public:
  FileHandle() = default;
  FileHandle(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle();

  static FileHandle open_read(const std::string& path);          // must exist; regular file
  static FileHandle create(const std::string& path);             // must not exist; read and write
  // What is written to is never a symbolic link.
  static FileHandle open_write(const std::string& path);         // must exist; read and write
  static FileHandle open_or_create(const std::string& path);     // read and write
  // O_DIRECT on an existing file, nullopt where the file system refuses it.
  static std::optional<FileHandle> open_direct(const std::string& path, bool write);
  // Unnamed file in `directory`, gone when closed.
  static FileHandle temporary(const std::string& directory);

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  uint64_t size() const;
  FileStat stat() const;
  void read(uint64_t offset, std::span<std::byte> out) const;    // all of it, or Error (failed) at end of file
  size_t read_some(uint64_t offset, std::span<std::byte> out) const;  // up to end of file
  void write(uint64_t offset, std::span<const std::byte> bytes); // all of it
  void resize(uint64_t size);
  void preallocate(uint64_t size);    // best effort; ENOSPC is an error, "not supported" is not
  void sync();                        // fdatasync
  void drop_cache() const;            // posix_fadvise(DONTNEED), best effort
  void close();                       // errors are reported, unlike in the destructor

 private:
  int fd_ = -1;
  std::string path_;
};

FileStat stat_path(const std::string& path);                     // kind absent when it does not exist
std::vector<std::string> list_directory(const std::string& path);  // names, sorted, without . and ..
std::string read_text(const std::string& path, uint64_t limit);  // Error (damaged) above `limit`
void write_new_file(const std::string& path, std::string_view text);  // create, write, sync
void make_directory(const std::string& path);                    // must not exist
void make_directories(const std::string& path);
void remove_tree(const std::string& path);                       // does not follow links; absent is fine
void sync_directory(const std::string& path);
// Fails with Exit::usage if `to` exists.
void rename_new(const std::string& from, const std::string& to);
// Swaps two existing names in one step; false where the file system cannot.
bool exchange(const std::string& a, const std::string& b);
// Real path of an existing path, links resolved.
std::string real_path(const std::string& path);
uint64_t free_bytes(const std::string& directory);

std::string join_path(std::string_view directory, std::string_view name);
std::string base_name(std::string_view path);                    // "b" of "a/b" and of "a/b/"
std::string parent_path(std::string_view path);                  // "a" of "a/b", "." of "b"

// An advisory lock on a file, held while the object lives: by one holder, or by several that share it.
class FileLock {
 public:
  enum class Mode : uint8_t { exclusive, shared };
  static std::optional<FileLock> try_lock(const std::string& path, Mode mode = Mode::exclusive);   // creates the file
  FileLock(FileLock&&) = default;

 private:
  explicit FileLock(FileHandle file) : file_(std::move(file)) {}
  FileHandle file_;
};

// For fault tests: called before each operation that touches the disk; a non-zero return is the errno
// that the operation then fails with. Operations: open read write sync resize rename mkdir remove list lock.
// Also settable from outside as FSDPCTL_FAULT="write:3:ENOSPC" (the third write fails; "write:3:KILL": the
// process dies there, as by kill -9). Not thread-safe to set; called from any thread.
using FaultHook = std::function<int(std::string_view operation, const std::string& path)>;
void set_fault_hook(FaultHook hook);

}  // namespace fsdpctl
