#include "lib/base/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "lib/base/finding.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

struct HookGuard {
  explicit HookGuard(FaultHook hook) { set_fault_hook(std::move(hook)); }
  ~HookGuard() { set_fault_hook(nullptr); }
};

TEST(File, WritesAndReadsAtOffsets) {
  TempDir dir;
  FileHandle file = FileHandle::create(dir / "a");
  file.write(3, bytes_of("hello"));
  file.sync();
  EXPECT_EQ(file.size(), 8u);
  std::string text(8, 'x');
  file.read(0, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, std::string("\0\0\0hello", 8));
  EXPECT_EQ(file.read_some(6, std::as_writable_bytes(std::span(text))), 2u);
  const Finding f = error_of([&] { file.read(6, std::as_writable_bytes(std::span(text))); });
  EXPECT_EQ(f.code, Exit::failed);
  EXPECT_EQ(f.found, "2");
  file.close();
  EXPECT_FALSE(file);
}

TEST(File, OpensOnlyRegularFilesForReading) {
  TempDir dir;
  EXPECT_EQ(error_of([&] { FileHandle::open_read(dir / "absent"); }).found, "No such file or directory");
  EXPECT_EQ(error_of([&] { FileHandle::open_read(dir.path()); }).found, "a directory");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { FileHandle::open_read(dir / "pipe"); }).what, "not a regular file");   // and does not wait
}

TEST(File, CreateRefusesAnExistingName) {
  TempDir dir;
  write_new_file(dir / "a", "1");
  EXPECT_EQ(error_of([&] { FileHandle::create(dir / "a"); }).code, Exit::failed);
  EXPECT_EQ(read_text(dir / "a", 10), "1");
  EXPECT_EQ(error_of([&] { read_text(dir / "a", 0); }).code, Exit::damaged);
}

TEST(File, PreallocateAndDirectAreUsableWhereTheFileSystemHasThem) {
  TempDir dir;
  FileHandle file = FileHandle::create(dir / "a");
  file.preallocate(100'000);
  file.resize(100'000);
  EXPECT_EQ(file.size(), 100'000u);
  if (auto direct = FileHandle::open_direct(dir / "a", true)) {
    alignas(4096) std::byte block[4096] = {};
    block[7] = std::byte{9};
    direct->write(4096, block);
    std::byte back[1];
    file.read(4096 + 7, back);
    EXPECT_EQ(back[0], std::byte{9});
  }
  EXPECT_EQ(error_of([&] { FileHandle::open_direct(dir / "absent", false); }).code, Exit::failed);
}

TEST(File, PreallocateLeavesMemoryFileSystemsAlone) {
  TempDir dir(TempDir::Place::memory);
  struct statfs system = {};
  ASSERT_EQ(::statfs(dir.path().c_str(), &system), 0);
  if (system.f_type != TMPFS_MAGIC) return;   // a system without one
  FileHandle file = FileHandle::create(dir / "a");
  file.preallocate(1 << 20);
  struct stat there = {};
  ASSERT_EQ(::stat((dir / "a").c_str(), &there), 0);
  EXPECT_EQ(there.st_blocks, 0);
}

TEST(File, TemporaryFilesHaveNoName) {
  TempDir dir;
  FileHandle file = FileHandle::temporary(dir.path());
  file.write(0, bytes_of("x"));
  EXPECT_TRUE(list_directory(dir.path()).empty());
  // A file system without unnamed files:
  HookGuard hook([n = 0](std::string_view op, const std::string&) mutable { return op == "open" && n++ == 0 ? EOPNOTSUPP : 0; });
  FileHandle named = FileHandle::temporary(dir.path());
  named.write(0, bytes_of("x"));
  EXPECT_EQ(named.size(), 1u);
  EXPECT_TRUE(list_directory(dir.path()).empty());
}

TEST(File, StatDescribesLinksByTheirTarget) {
  TempDir dir;
  write_new_file(dir / "a", "four");
  fs::create_symlink("a", dir / "link");
  fs::create_symlink("nowhere", dir / "dangling");
  EXPECT_FALSE(stat_path(dir / "a").is_link);
  EXPECT_TRUE(stat_path(dir / "link").is_link);
  EXPECT_EQ(stat_path(dir / "link").size, 4u);
  EXPECT_EQ(stat_path(dir / "link").inode, stat_path(dir / "a").inode);
  EXPECT_EQ(stat_path(dir / "dangling").kind, FileKind::absent);
  EXPECT_TRUE(stat_path(dir / "dangling").is_link);
  EXPECT_EQ(stat_path(dir / "a/b").kind, FileKind::absent);
  EXPECT_EQ(stat_path(dir / std::string(5000, 'x')).kind, FileKind::absent);
  EXPECT_EQ(stat_path(dir.path()).kind, FileKind::directory);
}

TEST(File, RemoveTreeDoesNotFollowLinks) {
  TempDir dir;
  make_directories(dir / "tree/x/y");
  write_new_file(dir / "keep", "k");
  write_new_file(dir / "tree/x/f", "f");
  fs::create_directory_symlink(dir.path(), dir / "tree/out");
  remove_tree(dir / "tree");
  remove_tree(dir / "tree");
  EXPECT_THAT(list_directory(dir.path()), ElementsAre("keep"));
}

TEST(File, RenameNewNeverReplaces) {
  TempDir dir;
  write_new_file(dir / "a", "a");
  write_new_file(dir / "b", "b");
  EXPECT_EQ(error_of([&] { rename_new(dir / "a", dir / "b"); }).code, Exit::usage);
  EXPECT_EQ(read_text(dir / "b", 9), "b");
  {
    HookGuard hook([n = 0](std::string_view op, const std::string&) mutable { return op == "rename" && n++ == 0 ? EINVAL : 0; });
    EXPECT_EQ(error_of([&] { rename_new(dir / "a", dir / "b"); }).code, Exit::usage);
  }
  HookGuard hook([n = 0](std::string_view op, const std::string&) mutable { return op == "rename" && n++ == 0 ? EINVAL : 0; });
  rename_new(dir / "a", dir / "c");
  EXPECT_THAT(list_directory(dir.path()), ElementsAre("b", "c"));
}

TEST(File, ExchangeSwapsNamesOrSaysThatItCannot) {
  TempDir dir;
  make_directory(dir / "a");
  write_new_file(dir / "b", "b");
  if (exchange(dir / "a", dir / "b")) {
    EXPECT_EQ(stat_path(dir / "b").kind, FileKind::directory);
    EXPECT_EQ(read_text(dir / "a", 9), "b");
  }
  HookGuard hook([](std::string_view op, const std::string&) { return op == "rename" ? EINVAL : 0; });
  EXPECT_FALSE(exchange(dir / "a", dir / "b"));
}

TEST(File, LocksExcludeEachOtherUntilReleased) {
  TempDir dir;
  std::optional<FileLock> first = FileLock::try_lock(dir / "lock");
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(FileLock::try_lock(dir / "lock").has_value());
  first.reset();
  EXPECT_TRUE(FileLock::try_lock(dir / "lock").has_value());
}

TEST(File, PathsAreJoinedAndSplit) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(base_name("a/b"), "b");
  EXPECT_EQ(base_name("a/b//"), "b");
  EXPECT_EQ(base_name("/"), "/");
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path("a/b/"), "a");
  EXPECT_EQ(parent_path("b"), ".");
  EXPECT_EQ(parent_path("/b"), "/");
}

// Each operation fails with the injected errno, says its name in the system's words, and no other is touched.
TEST(File, EveryOperationCanBeMadeToFail) {
  TempDir dir;
  write_new_file(dir / "a", "a");
  FileHandle file = FileHandle::open_write(dir / "a");
  std::byte byte[1] = {};
  const std::vector<std::pair<std::string_view, std::function<void()>>> cases = {
      {"open", [&] { FileHandle::open_read(dir / "a"); }},
      {"open", [&] { FileHandle::create(dir / "z"); }},
      {"open", [&] { FileHandle::open_direct(dir / "a", false); }},
      {"open", [&] { FileHandle::temporary(dir.path()); }},
      {"open", [&] { FileLock::try_lock(dir / "l"); }},
      {"read", [&] { file.read(0, byte); }},
      {"read", [&] { read_text(dir / "a", 9); }},
      {"write", [&] { file.write(0, byte); }},
      {"sync", [&] { file.sync(); }},
      {"sync", [&] { sync_directory(dir.path()); }},
      {"resize", [&] { file.resize(1); }},
      {"resize", [&] { file.preallocate(9); }},
      {"rename", [&] { rename_new(dir / "a", dir / "b"); }},
      {"rename", [&] { exchange(dir / "a", dir / "b"); }},
      {"mkdir", [&] { make_directory(dir / "d"); }},
      {"mkdir", [&] { make_directories(dir / "d/e"); }},
      {"remove", [&] { remove_tree(dir / "a"); }},
      {"list", [&] { list_directory(dir.path()); }},
      {"lock", [&] { FileLock::try_lock(dir / "l"); }},
  };
  for (const auto& each : cases) {
    const auto& operation = each.first;
    std::string touched;
    HookGuard hook([&](std::string_view op, const std::string& path) {
      if (op == operation) touched = path;
      return op == operation ? EIO : 0;
    });
    const Finding f = error_of(each.second);
    EXPECT_EQ(f.code, Exit::failed) << operation;
    EXPECT_EQ(f.found, "Input/output error") << operation;
    EXPECT_THAT(touched, HasSubstr(dir.path())) << operation;
    set_fault_hook(nullptr);
    EXPECT_THAT(list_directory(dir.path()), testing::Contains("a")) << operation;
  }
}

TEST(File, AFullDiskIsSaidInSoManyWords) {
  TempDir dir;
  FileHandle file = FileHandle::create(dir / "a");
  HookGuard hook([](std::string_view op, const std::string&) { return op == "write" ? ENOSPC : 0; });
  std::byte byte[1] = {};
  const Finding f = error_of([&] { file.write(0, byte); });
  EXPECT_EQ(f.what, "no space left on device");
  EXPECT_EQ(f.where.path, dir / "a");
  EXPECT_EQ(f.hint, "df -h " + dir.path());
}

// The environment is read once per process, so these faults need one of their own: this program again, which ends in
// ChildMode before any test runs.
constexpr const char* kChildVariable = "FSDPCTL_FILE_TEST_CHILD";

class ChildMode : public testing::Environment {
 public:
  void SetUp() override {
    const char* directory = std::getenv(kChildVariable);
    if (directory == nullptr) return;
    FileHandle file = FileHandle::create(std::string(directory) + "/a");
    const std::byte byte[1] = {};
    int writes = 0;
    try {
      for (; writes < 5; ++writes) file.write(0, byte);
    } catch (const Error& e) {
      _exit(e.finding().what == "no space left on device" ? 100 + writes : 1);
    }
    _exit(100 + writes);
  }
};
[[maybe_unused]] const auto* const kChildMode = testing::AddGlobalTestEnvironment(new ChildMode);

int status_of_child(const char* fault) {
  const TempDir dir;
  const pid_t child = fork();
  if (child == 0) {
    setenv("FSDPCTL_FAULT", fault, 1);
    setenv(kChildVariable, dir.path().c_str(), 1);
    execl("/proc/self/exe", "base_tests", "--gtest_filter=FileEnvironment.*", "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(FileEnvironment, FaultsComeFromTheEnvironment) {
  const int status = status_of_child("write:3:ENOSPC");
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 102);   // the third write failed
  EXPECT_EQ(WEXITSTATUS(status_of_child("sync:1:ENOSPC")), 105);
  const int killed = status_of_child("write:1:KILL");
  EXPECT_TRUE(WIFSIGNALED(killed));
  EXPECT_EQ(WTERMSIG(killed), SIGKILL);
}

}  // namespace
}  // namespace fsdpctl
