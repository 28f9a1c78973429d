#include "lib/base/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "lib/base/finding.h"
#include "lib/base/system_call.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;   // Linux moves at most 2 GiB - 4 KiB per call

int open_fd(const std::string& path, int flags) {
  return system_call("open", path, [&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, 0666); });
}

FileHandle opened(const std::string& path, int flags, std::string_view what) {
  const int fd = open_fd(path, flags);
  if (fd < 0) throw_system(what, path, errno);
  return {fd, path};
}

void require_regular(const FileHandle& file) {
  const FileKind kind = file.stat().kind;
  if (kind == FileKind::file) return;
  throw Error(Exit::failed, "not a regular file")
      .at(file.path())
      .saw("a regular file", kind == FileKind::directory ? "a directory" : "a device, pipe or socket");
}

}  // namespace

FileHandle::FileHandle(FileHandle&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

FileHandle::~FileHandle() {
  if (fd_ >= 0) ::close(fd_);
}

FileHandle FileHandle::open_read(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. Regular files ignore it.
  FileHandle file = opened(path, O_RDONLY | O_NONBLOCK, "cannot open file");
  require_regular(file);
  return file;
}

FileHandle FileHandle::create(const std::string& path) {
  return opened(path, O_RDWR | O_CREAT | O_EXCL, "cannot create file");
}

FileHandle FileHandle::open_write(const std::string& path) {
  FileHandle file = opened(path, O_RDWR | O_NONBLOCK | O_NOFOLLOW, "cannot open file for writing");
  require_regular(file);
  return file;
}

FileHandle FileHandle::open_or_create(const std::string& path) {
  FileHandle file = opened(path, O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW, "cannot open or create file");
  require_regular(file);
  return file;
}

std::optional<FileHandle> FileHandle::open_direct(const std::string& path, bool write) {
  const int fd = open_fd(path, (write ? O_RDWR | O_NOFOLLOW : O_RDONLY) | O_DIRECT | O_NONBLOCK);
  if (fd >= 0) return FileHandle(fd, path);
  if (errno == EINVAL || errno == EOPNOTSUPP) return std::nullopt;
  throw_system("cannot open file", path, errno);
}

FileHandle FileHandle::temporary(const std::string& directory) {
  const int fd = open_fd(directory, O_TMPFILE | O_RDWR | O_EXCL);
  if (fd >= 0) return {fd, directory};
  // Old kernels report EISDIR or ENOENT, file systems without the feature EOPNOTSUPP.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL) {
    throw_system("cannot create temporary file", directory, errno);
  }
  std::string pattern = join_path(directory, "fsdpctl-spool-XXXXXX");
  const int named = system_call("open", directory, [&] { return ::mkostemp(pattern.data(), O_CLOEXEC); });
  if (named < 0) throw_system("cannot create temporary file", directory, errno);
  ::unlink(pattern.c_str());
  return {named, directory};
}

FileStat FileHandle::stat() const {
  struct ::stat info = {};
  if (::fstat(fd_, &info) != 0) throw_system("cannot examine file", path_, errno);
  return describe(info);
}

uint64_t FileHandle::size() const { return stat().size; }

size_t FileHandle::read_some(uint64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = system_call("read", path_, [&] {
      return ::pread(fd_, out.data() + done, std::min(out.size() - done, kMaxTransfer),
                     static_cast<off_t>(offset + done));
    });
    if (n < 0) throw_system("cannot read file", path_, errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void FileHandle::read(uint64_t offset, std::span<std::byte> out) const {
  const size_t done = read_some(offset, out);
  if (done == out.size()) return;
  throw Error(Exit::failed, "file ends early")
      .at(path_)
      .range(offset, offset + out.size())
      .saw(std::to_string(out.size()) + " bytes", std::to_string(done));
}

void FileHandle::write(uint64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = system_call("write", path_, [&] {
      return ::pwrite(fd_, bytes.data() + done, std::min(bytes.size() - done, kMaxTransfer),
                      static_cast<off_t>(offset + done));
    });
    if (n <= 0) throw_system("cannot write file", path_, n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
}

void FileHandle::resize(uint64_t size) {
  const int rc = system_call("resize", path_, [&] { return ::ftruncate(fd_, static_cast<off_t>(size)); });
  if (rc != 0) throw_system("cannot set the size of file", path_, errno);
}

void FileHandle::preallocate(uint64_t size) {
  if (size == 0) return;
  struct statfs system = {};
  const bool in_memory = ::fstatfs(fd_, &system) == 0 && system.f_type == TMPFS_MAGIC;   // it would write zeros to all of it
  const int rc =
      system_call("resize", path_, [&] { return in_memory ? 0 : ::fallocate(fd_, 0, 0, static_cast<off_t>(size)); });
  if (rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
  throw_system("cannot reserve space for file", path_, errno);
}

void FileHandle::sync() {
  const int rc = system_call("sync", path_, [&] { return ::fdatasync(fd_); });
  if (rc != 0) throw_system("cannot sync file", path_, errno);
}

void FileHandle::drop_cache() const { ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

void FileHandle::close() {
  // Not repeated on EINTR: Linux has closed the descriptor even then.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) throw_system("cannot close file", path_, errno);
}

std::optional<FileLock> FileLock::try_lock(const std::string& path, Mode mode) {
  const int how = mode == Mode::shared ? LOCK_SH : LOCK_EX;
  while (true) {
    FileHandle file = opened(path, O_RDWR | O_CREAT | O_NOFOLLOW, "cannot open lock file");
    const int rc = system_call("lock", path, [&] { return ::flock(file.fd(), how | LOCK_NB); });
    if (rc != 0 && errno == EWOULDBLOCK) return std::nullopt;
    if (rc != 0) throw_system("cannot lock file", path, errno);
    // Its holder may have removed it between our open and our lock: then the lock guards nothing.
    struct stat locked = {}, named = {};
    if (::fstat(file.fd(), &locked) != 0) throw_system("cannot examine file", path, errno);
    if (::stat(path.c_str(), &named) == 0 && named.st_ino == locked.st_ino && named.st_dev == locked.st_dev) {
      return FileLock(std::move(file));
    }
  }
}

}  // namespace fsdpctl
