// The parts of lib/base/file.h that work on names: directories, renames, paths.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <climits>
#include <cstdio>
#include <memory>

#include "lib/base/file.h"
#include "lib/base/finding.h"
#include "lib/base/system_call.h"
#include "lib/base/temporary.h"

namespace fsdpctl {
namespace {

// Has `call` happened? False with errno where it failed or was made to.
template <class Call>
bool succeeded(std::string_view operation, const std::string& path, Call call) {
  return system_call(operation, path, call) == 0;
}

struct CloseDirectory {
  void operator()(DIR* d) const { ::closedir(d); }
};

bool exists(const std::string& path) {
  struct stat info = {};
  return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace

FileStat describe(const struct ::stat& info) {
  FileStat result;
  result.kind = S_ISREG(info.st_mode)   ? FileKind::file
                : S_ISDIR(info.st_mode) ? FileKind::directory
                                        : FileKind::other;
  result.size = static_cast<uint64_t>(info.st_size);
  result.mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  result.inode = info.st_ino;
  result.names = info.st_nlink;
  return result;
}

FileStat stat_path(const std::string& path) {
  FileStat result;
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) return result;   // no file has such a name
    throw_system("cannot examine file", path, errno);
  }
  result.is_link = S_ISLNK(info.st_mode);
  if (result.is_link && ::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ELOOP) return result;   // dangling
    throw_system("cannot examine file", path, errno);
  }
  const bool is_link = result.is_link;
  result = describe(info);
  result.is_link = is_link;
  return result;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::unique_ptr<DIR, CloseDirectory> directory;
  const bool opened = succeeded("list", path, [&] {
    directory.reset(::opendir(path.c_str()));
    return directory ? 0 : -1;
  });
  if (!opened) throw_system("cannot list directory", path, errno);
  std::vector<std::string> names;
  for (errno = 0; const dirent* entry = ::readdir(directory.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) throw_system("cannot list directory", path, errno);
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_text(const std::string& path, uint64_t limit) {
  const FileHandle file = FileHandle::open_read(path);
  const uint64_t size = file.size();
  if (size > limit) {
    throw Error(Exit::damaged, "file is larger than it can be")
        .at(path)
        .saw("at most " + std::to_string(limit) + " bytes", std::to_string(size));
  }
  std::string text(size, '\0');
  text.resize(file.read_some(0, std::as_writable_bytes(std::span(text))));
  return text;
}

void write_new_file(const std::string& path, std::string_view text) {
  FileHandle file = FileHandle::create(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.sync();
  file.close();
}

void make_directory(const std::string& path) {
  if (!succeeded("mkdir", path, [&] { return ::mkdir(path.c_str(), 0777); })) {
    throw_system("cannot create directory", path, errno);
  }
}

void make_directories(const std::string& path) {
  if (path.empty() || stat_path(path).kind == FileKind::directory) return;
  make_directories(parent_path(path));
  const bool made = succeeded("mkdir", path, [&] { return ::mkdir(path.c_str(), 0777); });
  // Another process may have been faster.
  if (!made && !(errno == EEXIST && stat_path(path).kind == FileKind::directory)) {
    throw_system("cannot create directory", path, errno);
  }
}

void remove_tree(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return;
    throw_system("cannot examine file", path, errno);
  }
  if (S_ISDIR(info.st_mode)) {
    for (const std::string& name : list_directory(path)) remove_tree(join_path(path, name));
    if (succeeded("remove", path, [&] { return ::rmdir(path.c_str()); })) return;
  } else if (succeeded("remove", path, [&] { return ::unlink(path.c_str()); })) {
    return;
  }
  if (errno != ENOENT) throw_system("cannot remove file", path, errno);
}

void sync_directory(const std::string& path) {
  const int fd = system_call("open", path, [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (fd < 0) throw_system("cannot open directory", path, errno);
  const FileHandle directory(fd, path);
  const bool synced = succeeded("sync", path, [&] { return ::fsync(fd); });
  // Some network file systems have no sync of directories; then there is nothing to wait for.
  if (!synced && errno != EINVAL && errno != EOPNOTSUPP) throw_system("cannot sync directory", path, errno);
}

void rename_new(const std::string& from, const std::string& to) {
  bool renamed = succeeded("rename", from, [&] {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  });
  if (!renamed && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
    // A file system without RENAME_NOREPLACE: look first. A name that appears in between is lost only if it
    // is a file or an empty directory.
    if (exists(to)) {
      errno = EEXIST;
    } else {
      renamed = succeeded("rename", from, [&] { return ::rename(from.c_str(), to.c_str()); });
    }
  }
  if (renamed) return;
  if (errno == EEXIST) throw Error(Exit::usage, "output exists").at(to);
  throw_system("cannot rename file", from, errno);
}

bool exchange(const std::string& a, const std::string& b) {
  const bool exchanged = succeeded("rename", a, [&] {
    return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
  });
  if (!exchanged && errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    throw_system("cannot exchange files", a, errno);
  }
  return exchanged;
}

std::string real_path(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) throw_system("cannot resolve path", path, errno);
  std::string result = resolved;
  std::free(resolved);
  return result;
}

uint64_t free_bytes(const std::string& directory) {
  struct statvfs info = {};
  if (::statvfs(directory.c_str(), &info) != 0) throw_system("cannot examine file system", directory, errno);
  return uint64_t{info.f_bavail} * info.f_frsize;
}

namespace {

std::string_view without_trailing_slashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}

}  // namespace

std::string temporary_directory() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
}

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  std::string path(directory);
  if (path.back() != '/') path += '/';
  return path.append(name);
}

std::string base_name(std::string_view path) {
  path = without_trailing_slashes(path);
  return std::string(path.size() > 1 ? path.substr(path.rfind('/') + 1) : path);
}

std::string parent_path(std::string_view path) {
  path = without_trailing_slashes(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(without_trailing_slashes(path.substr(0, std::max<size_t>(slash, 1))));
}

}  // namespace fsdpctl
