#include "lib/ckpt/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "lib/base/finding.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

std::string text_of(const Source& source, SourceIndex index) { return source.read_all(index, 1000); }

TEST(Source, ReadsFilesOfADirectoryByNumber) {
  TempDir dir;
  make_directories(dir / "ckpt/sub");
  put_file(dir / "ckpt/a", "first");
  put_file(dir / "ckpt/sub/b", "second");
  const auto source = Source::open(dir / "ckpt/");
  EXPECT_EQ(source->path(), dir / "ckpt");
  EXPECT_TRUE(source->is_directory());
  const SourceIndex a = source->add("a"), b = source->add("sub/b");
  EXPECT_EQ(source->add("./sub//b"), b);
  EXPECT_EQ(source->add("a"), a);
  EXPECT_EQ(source->file_count(), 2u);
  EXPECT_EQ(source->file(b).name, "sub/b");
  EXPECT_EQ(source->file(b).size, 6u);
  EXPECT_EQ(text_of(*source, a), "first");
  std::byte out[3];
  source->read(b, 3, out);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(out), 3), "ond");
  EXPECT_TRUE(source->has("sub/b"));
  EXPECT_FALSE(source->has("sub"));
  EXPECT_FALSE(source->has("../ckpt/a"));
}

TEST(Source, ListsEntriesSortedWithTheirKinds) {
  TempDir dir;
  make_directory(dir / "d");
  make_directory(dir / "d/z");
  put_file(dir / "d/b", "12");
  fs::create_symlink("nowhere", dir / "d/a");
  const auto source = Source::open(dir / "d");
  const auto entries = source->entries();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].kind, FileKind::absent);
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].size, 2u);
  EXPECT_EQ(entries[2].kind, FileKind::directory);
  EXPECT_TRUE(source->entries("z").empty());
  EXPECT_EQ(error_of([&] { source->entries(".."); }).code, Exit::unsupported);
}

TEST(Source, ASingleFileKnowsOnlyItself) {
  TempDir dir;
  put_file(dir / "x.pt", "data");
  put_file(dir / "y.pt", "other");
  fs::create_symlink("x.pt", dir / "link.pt");
  const auto source = Source::open(dir / "link.pt");   // the argument may be a link
  EXPECT_FALSE(source->is_directory());
  const auto entries = source->entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].name, "link.pt");
  EXPECT_EQ(text_of(*source, source->add("link.pt")), "data");
  EXPECT_FALSE(source->has("y.pt"));
  EXPECT_EQ(error_of([&] { source->add("y.pt"); }).code, Exit::damaged);
}

TEST(Source, NamesThatLeadOutAreUnsafe) {
  TempDir dir;
  make_directory(dir / "d");
  put_file(dir / "outside", "secret");
  const auto source = Source::open(dir / "d");
  for (const std::string& name : {std::string("../outside"), dir / "outside", std::string("x/../../outside"),
                                  std::string(""), std::string("."), std::string("/"), std::string("a\0b", 3)}) {
    const Finding f = error_of([&] { source->add(name); });
    EXPECT_EQ(f.code, Exit::unsupported) << name;
    EXPECT_EQ(f.found, name);
  }
}

TEST(Source, MissingFilesAreDamage) {
  TempDir dir;
  make_directory(dir / "d");
  make_directory(dir / "d/sub");
  ASSERT_EQ(mkfifo((dir / "d/pipe").c_str(), 0600), 0);
  fs::create_symlink("nowhere", dir / "d/dangling");
  const auto source = Source::open(dir / "d");
  for (const char* name : {"absent", "sub", "pipe", "dangling", "absent/x"}) {
    const Finding f = error_of([&] { source->add(name); });
    EXPECT_EQ(f.code, Exit::damaged) << name;
    EXPECT_EQ(f.what, "file is missing");
    EXPECT_EQ(f.where.path, name);
  }
  EXPECT_EQ(error_of([&] { Source::open(dir / "absent"); }).code, Exit::failed);
  EXPECT_EQ(error_of([&] { Source::open(dir / "d/pipe"); }).code, Exit::failed);
}

TEST(Source, GitLfsPointersAreNamedAsSuch) {
  TempDir dir;
  const std::string begin = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n";
  put_file(dir / "pointer", begin);
  put_file(dir / "longer", begin + std::string(2000, 'x'));
  const Finding f = error_of([&] { Source::open(dir.path())->add("pointer"); });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.what, "file is a Git LFS pointer, not the data");
  EXPECT_EQ(f.hint, "git lfs pull");
  EXPECT_EQ(Source::open(dir.path())->add("longer"), 0u);
}

TEST(Source, LinksOutNeedFollowLinks) {
  TempDir dir;
  make_directories(dir / "d/in");
  make_directory(dir / "else");
  put_file(dir / "d/in/file", "inside");
  put_file(dir / "else/file", "outside");
  fs::create_symlink("in/file", dir / "d/near");
  fs::create_symlink("../else/file", dir / "d/far");
  fs::create_directory_symlink("../else", dir / "d/folder");
  // A name that only begins like the root:
  make_directory(dir / "d2");
  put_file(dir / "d2/file", "outside");
  fs::create_symlink("../d2/file", dir / "d/twin");
  const auto source = Source::open(dir / "d");
  EXPECT_EQ(text_of(*source, source->add("near")), "inside");
  for (const char* name : {"far", "folder/file", "twin"}) {
    const Finding f = error_of([&] { source->add(name); });
    EXPECT_EQ(f.code, Exit::unsupported) << name;
    EXPECT_EQ(f.hint, "--follow-links");
  }
  EXPECT_EQ(error_of([&] { source->entries("folder"); }).code, Exit::unsupported);
  const auto following = Source::open(dir / "d", {.follow_links = true});
  EXPECT_EQ(text_of(*following, following->add("far")), "outside");
  EXPECT_EQ(text_of(*following, following->add("folder/file")), "outside");
}

TEST(Source, TheHuggingFaceCachesBlobsAreInside) {
  TempDir dir;
  make_directories(dir / "hub/models--a--b/blobs");
  make_directories(dir / "hub/models--a--b/snapshots/0123/sub");
  make_directories(dir / "hub/models--c/blobs");
  put_file(dir / "hub/models--a--b/blobs/beef", "weights");
  put_file(dir / "hub/models--c/blobs/dead", "other");
  const std::string snapshot = dir / "hub/models--a--b/snapshots/0123";
  fs::create_symlink("../../blobs/beef", snapshot + "/model.safetensors");
  fs::create_symlink("../../../blobs/beef", snapshot + "/sub/model.safetensors");
  fs::create_symlink("../../../models--c/blobs/dead", snapshot + "/foreign.safetensors");
  fs::create_directory_symlink(snapshot, dir / "link");
  for (const std::string& path : {snapshot, dir / "link"}) {
    const auto source = Source::open(path);
    EXPECT_EQ(text_of(*source, source->add("model.safetensors")), "weights");
    EXPECT_EQ(text_of(*source, source->add("sub/model.safetensors")), "weights");
    EXPECT_EQ(error_of([&] { source->add("foreign.safetensors"); }).code, Exit::unsupported);
  }
  const auto below = Source::open(snapshot + "/sub");
  EXPECT_EQ(text_of(*below, below->add("model.safetensors")), "weights");
  // The directory of all snapshots is none itself.
  const auto above = Source::open(dir / "hub/models--a--b/snapshots");
  EXPECT_EQ(error_of([&] { above->add("0123/model.safetensors"); }).code, Exit::unsupported);
}

TEST(Source, ReadingBeyondTheEndIsDamageAndSaysWhere) {
  TempDir dir;
  put_file(dir / "a", "12345");
  const auto source = Source::open(dir / "a");
  const SourceIndex a = source->add("a");
  std::byte out[4];
  const Finding f = error_of([&] { source->read(a, 3, out); });
  EXPECT_EQ(f.code, Exit::damaged);
  EXPECT_EQ(f.where.text(), "a, bytes [3, 7)");
  EXPECT_EQ(f.saw_text(), "expected at least 7 bytes, found 5");
  EXPECT_EQ(error_of([&] { source->read(a, ~uint64_t{0}, out); }).code, Exit::damaged);
  EXPECT_EQ(error_of([&] { source->read_all(a, 4); }).code, Exit::unsupported);
}

TEST(Source, AFileThatChangesOrVanishesIsNoticed) {
  TempDir dir;
  make_directory(dir / "d");
  put_file(dir / "d/a", "12345");
  put_file(dir / "d/b", "12345");
  const auto source = Source::open(dir / "d");
  const SourceIndex a = source->add("a"), b = source->add("b");
  fs::resize_file(dir / "d/a", 9);
  fs::remove(dir / "d/b");
  std::byte out[1];
  EXPECT_EQ(error_of([&] { source->read(a, 0, out); }).what, "file changed while it was in use");
  EXPECT_EQ(error_of([&] { source->read(b, 0, out); }).code, Exit::failed);
}

TEST(Source, ManyFilesAreReadThroughFewHandlesFromManyThreads) {
  TempDir dir;
  make_directory(dir / "d");
  for (int i = 0; i < 200; ++i) put_file(dir / ("d/" + std::to_string(i)), std::to_string(i));
  const auto source = Source::open(dir / "d");
  FileHandle spool = FileHandle::temporary(dir.path());
  spool.write(0, std::as_bytes(std::span(std::string_view("spooled"))));
  const SourceIndex spooled = source->add_spool(std::move(spool), "decoded items");
  EXPECT_TRUE(source->file(spooled).spool);
  const auto open_files = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), {}); };
  const auto before = open_files();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) wrong += text_of(*source, source->add(std::to_string(i))) != std::to_string(i);
      wrong += text_of(*source, spooled) != "spooled";
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(source->file_count(), 201u);
  EXPECT_LE(open_files() - before, 64);
}

TEST(Source, MayBeMemoryThatSomebodyLends) {
  const auto source = Source::in_memory("a run");
  const std::string bytes = "0123456789";
  const SourceIndex mine = source->lend("mine", std::as_bytes(std::span(bytes)));
  const SourceIndex empty = source->lend("empty", {});
  const SourceIndex other = source->elsewhere("other", 100);
  EXPECT_TRUE(source->is_in_memory());
  EXPECT_EQ(source->path(), "a run");
  EXPECT_EQ(text_of(*source, mine), bytes);
  EXPECT_EQ(text_of(*source, empty), "");
  EXPECT_EQ(source->file(other).size, 100u);
  EXPECT_EQ(source->add("mine"), mine);
  std::byte out[2];
  source->read(mine, 8, out);
  EXPECT_EQ(static_cast<char>(out[1]), '9');
  EXPECT_EQ(error_of([&] { source->read(mine, 9, out); }).code, Exit::damaged);
  EXPECT_EQ(error_of([&] { source->read(other, 0, out); }).what, "bytes that another process has");
  EXPECT_EQ(error_of([&] { source->add("file"); }).code, Exit::damaged);
  EXPECT_TRUE(source->entries().empty());
  EXPECT_FALSE(source->has("mine"));
  source->drop_cache(mine);
}

}  // namespace
}  // namespace fsdpctl
