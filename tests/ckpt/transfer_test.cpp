#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>

#include "lib/base/checksum.h"
#include "lib/ckpt/engine.h"
#include "tests/support/error_of.h"
#include "tests/support/test_layout.h"

namespace fsdpctl {
namespace {

EngineOptions with_threads(int threads) {
  EngineOptions options;
  options.threads = threads;
  options.max_memory = 16 << 20;
  return options;
}

// A checkpoint, a plan of it, and a place to write it to.
struct Scene {
  explicit Scene(uint64_t seed) : made(seed) {}

  void lay_out(int files, bool checksums) {
    made.write();
    for (auto& layout : random_layouts(made, files, checksums)) plan.push_back(std::move(layout));
  }
  void add_file(std::vector<TestItem> items, bool checksums) {
    plan.push_back(std::make_unique<TestLayout>(made, "out" + std::to_string(plan.size()), std::move(items), checksums));
  }
  Box whole(TensorIndex t) { return whole_box(*made.checkpoint.arena, made.checkpoint.tensors[t].shape); }

  TransferResult run(const EngineOptions& options, const std::string& name = "data", const std::string& journal = "") {
    return transfer(made.checkpoint, plan, directory / name, {journal.empty() ? "" : directory / journal, {}}, options);
  }
  void expect_written(const std::string& name = "data") const {
    for (const auto& file : plan) {
      const std::string path = directory / name + "/" + file->path();
      ASSERT_EQ(stat_path(path).kind, FileKind::file) << file->path();
      const std::string expected = static_cast<const TestLayout&>(*file).expected();
      const std::string got = read_text(path, 1 << 30);
      ASSERT_EQ(got.size(), expected.size()) << file->path();
      const auto [a, b] = std::mismatch(got.begin(), got.end(), expected.begin());
      ASSERT_TRUE(a == got.end()) << file->path() << " differs at " << a - got.begin();
    }
  }

  WrittenCheckpoint made;
  FilePlan plan;
  TempDir directory;
};

void expect_sums(const Scene& scene, const TransferResult& result) {
  ASSERT_EQ(result.tensors.size(), scene.made.content.size());
  for (size_t t = 0; t < result.tensors.size(); ++t) {
    EXPECT_EQ(result.tensors[t].source_crc64, crc64(as_bytes(scene.made.content[t]))) << t;
  }
}

class Plans : public testing::TestWithParam<uint64_t> {};

TEST_P(Plans, FilesAndSumsAreRightWhateverTheThreads) {
  Scene scene(GetParam());
  for (int i = 0; i < 30; ++i) scene.made.add(random_tensor(scene.made.random));
  scene.lay_out(5, GetParam() % 2);
  for (const int threads : {1, 4}) {
    const std::string name = "threads" + std::to_string(threads);
    const TransferResult result = scene.run(with_threads(threads), name);
    scene.expect_written(name);
    expect_sums(scene, result);
    for (const TensorSum& sum : result.tensors) EXPECT_EQ(sum.crc64, sum.source_crc64);
    EXPECT_EQ(result.bytes_resumed, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Plans, testing::Range<uint64_t>(1, 9));

// Elements across blocks and jobs, headers longer than a block, several jobs in a file.
struct LargeScene : Scene {
  explicit LargeScene(bool checksums) : Scene(20) {
    const TensorIndex a = made.add({.dtype = DType::complex128, .shape = {1200, 1000}, .cut = Cut::rows, .parts = 5, .crc32 = true});
    const TensorIndex b = made.add({.dtype = DType::float64, .shape = {700, 1024}, .cut = Cut::columns, .parts = 8});
    const TensorIndex c = made.add({.dtype = DType::float32, .shape = {1500, 1111}, .order = Order::transposed});
    const TensorIndex d = made.add({.dtype = DType::uint8, .shape = {3}});
    made.write();
    add_file({{a, whole(a), 5, 0}, {d, whole(d), 3 << 20, 0}, {b, whole(b), 2, 1}}, checksums);
    add_file({{c, whole(c), 9'000'001, 2 << 20}}, checksums);
  }
};

TEST(Transfer, LargeTensorsAtOddOffsets) {
  for (const bool checksums : {false, true}) {
    for (const bool direct : {false, true}) {
      LargeScene scene(checksums);
      EngineOptions options = with_threads(3);
      options.direct = direct;
      const TransferResult result = scene.run(options);
      scene.expect_written();
      expect_sums(scene, result);
    }
  }
}

TEST(Transfer, LittleMemoryIsEnough) {
  LargeScene scene(true);
  EngineOptions options = with_threads(8);
  options.max_memory = 1;
  scene.run(options);
  scene.expect_written();
}

TEST(Transfer, ManySmallItems) {
  Scene scene(21);
  std::vector<TestItem> items;
  for (int i = 0; i < 6000; ++i) {
    const TensorIndex t = scene.made.add({.shape = {8, 8}, .cut = Cut::rows, .parts = 2, .crc32 = true});
    items.push_back({t, scene.whole(t), 40, 3});
  }
  scene.made.write();
  scene.add_file(items, true);
  std::atomic<int> writes = 0;
  set_fault_hook([&](std::string_view operation, const std::string&) {
    writes += operation == "write";
    return 0;
  });
  scene.run(with_threads(2));
  set_fault_hook(nullptr);
  scene.expect_written();
  EXPECT_LT(writes, 20);
}

TEST(Transfer, CastsChangeTheOutputAndAreCounted) {
  Scene scene(22);
  scene.made.add({.dtype = DType::float32, .shape = {300, 1001}, .cut = Cut::columns, .parts = 3});
  scene.made.add({.dtype = DType::float64, .shape = {200000}, .cut = Cut::flat, .parts = 3, .swap = true});
  scene.made.checkpoint.tensors[0].dtype = DType::bfloat16;
  scene.made.checkpoint.tensors[1].dtype = DType::float8_e5m2;
  scene.lay_out(3, true);
  const TransferResult result = scene.run(with_threads(3));
  scene.expect_written();
  expect_sums(scene, result);
  const std::vector<TensorSum> again = fingerprint(scene.made.checkpoint, {}, with_threads(1));
  for (size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(result.tensors[t].crc64, again[t].crc64);
    EXPECT_NE(result.tensors[t].crc64, result.tensors[t].source_crc64);
    EXPECT_EQ(result.tensors[t].casts, again[t].casts);
    EXPECT_GT(result.tensors[t].casts.changed, 0u);
  }
}

TEST(Transfer, ChecksumMismatchOfAPieceEndsIt) {
  LargeScene scene(false);
  scene.made.checkpoint.pieces[2].crc32 ^= 1;
  const Finding finding = error_of([&] { scene.run(with_threads(2)); });
  EXPECT_EQ(finding.what, "zip member checksum mismatch");
  EXPECT_EQ(finding.where.key, "tensor0");
}

TEST(Transfer, APlanThatRepeatsElementsIsRefused) {
  Scene scene(23);
  const TensorIndex t = scene.made.add({.shape = {10}});
  scene.made.write();
  scene.add_file({{t, scene.whole(t), 0, 0}}, false);
  scene.add_file({{t, scene.whole(t), 0, 0}}, false);
  EXPECT_EQ(error_of([&] { scene.run(with_threads(1)); }).what, "plan does not write every element exactly once");
}

TEST(Transfer, WithoutAJournalAnExistingFileIsNotTouched) {
  Scene scene(24);
  scene.made.add({.shape = {10}});
  scene.lay_out(1, false);
  make_directory(scene.directory / "data");
  write_new_file(scene.directory / "data/out0", "mine");
  EXPECT_EQ(error_of([&] { scene.run(with_threads(1)); }).code, Exit::failed);
  EXPECT_EQ(read_text(scene.directory / "data/out0", 100), "mine");
}

// ---- O_DIRECT

class Hook {
 public:
  explicit Hook(FaultHook hook) { set_fault_hook(std::move(hook)); }
  ~Hook() { set_fault_hook(nullptr); }
};

TEST(Transfer, AFileSystemThatRefusesDirectWritesGetsBufferedOnes) {
  LargeScene scene(true);
  std::atomic<bool> first = true;
  const Hook hook([&](std::string_view operation, const std::string& path) {
    const bool output = path.find("/data/out") != std::string::npos;
    return output && operation == "write" && first.exchange(false) ? EINVAL : 0;
  });
  scene.run(with_threads(2));
  scene.expect_written();
}

// ---- journal

EngineOptions cancelled_after(int blocks, std::atomic<bool>& cancel, std::atomic<int>& count) {
  EngineOptions options = with_threads(2);
  options.cancel = &cancel;
  cancel = false;
  count = 0;
  options.progress = [&cancel, &count, blocks](uint64_t, uint64_t) { cancel = ++count >= blocks; };
  return options;
}

TEST(Journal, ACancelledTransferIsContinued) {
  for (const bool checksums : {false, true}) {
    LargeScene scene(checksums);
    std::atomic<bool> cancel;
    std::atomic<int> count;
    EXPECT_EQ(error_of([&] { scene.run(cancelled_after(9, cancel, count), "data", "journal"); }).code, Exit::interrupted);
    uint64_t last = 0;
    EngineOptions options = with_threads(3);
    options.progress = [&](uint64_t done, uint64_t) { last = done; };
    const TransferResult result = scene.run(options, "data", "journal");
    EXPECT_GT(result.bytes_resumed, 0u);
    EXPECT_GT(result.bytes_written, 0u);
    EXPECT_EQ(last, result.bytes_resumed + result.bytes_written);
    scene.expect_written();
    expect_sums(scene, result);
    const TransferResult again = scene.run(with_threads(1), "data", "journal");
    EXPECT_EQ(again.bytes_written, 0u);
    scene.expect_written();
    expect_sums(scene, again);
  }
}

TEST(Journal, ChecksumsOfPiecesReadByTwoRunsAreStillChecked) {
  LargeScene scene(false);
  // A job is 4 MiB: a cancel after four of them leaves the last piece of the first tensor half read.
  scene.made.checkpoint.pieces[4].crc32 ^= 1;
  std::atomic<bool> cancel;
  std::atomic<int> count;
  EXPECT_EQ(error_of([&] {
              EngineOptions options = cancelled_after(4, cancel, count);
              options.threads = 1;
              scene.run(options, "data", "journal");
            }).code,
            Exit::interrupted);
  EXPECT_EQ(error_of([&] { scene.run(with_threads(1), "data", "journal"); }).what, "zip member checksum mismatch");
}

TEST(Journal, FilesThatAreGoneOrOfAnotherSizeAreWrittenAgain) {
  for (const bool remove : {false, true}) {
    LargeScene scene(true);
    scene.run(with_threads(2), "data", "journal");
    const std::string path = scene.directory / "data/out0";
    if (remove) remove_tree(path);
    else std::filesystem::resize_file(path, 1000);
    // A run that is cancelled at once must not leave a journal that calls the new file finished.
    std::atomic<bool> cancel;
    std::atomic<int> count;
    EXPECT_EQ(error_of([&] { scene.run(cancelled_after(1, cancel, count), "data", "journal"); }).code, Exit::interrupted);
    const TransferResult result = scene.run(with_threads(2), "data", "journal");
    scene.expect_written();
    expect_sums(scene, result);
  }
}

// What the journal calls finished is believed for its bytes only; a change at any place is found and made good, whatever kind of
// segment it hits.
TEST(Journal, FinishedJobsWhoseBytesChangedAreDoneAgain) {
  for (const bool checksums : {false, true}) {
    LargeScene scene(checksums);
    scene.run(with_threads(2), "data", "journal");
    uint64_t redone = 0;
    for (const char* name : {"data/out0", "data/out1"}) {
      const std::string path = scene.directory / name;
      const uint64_t size = stat_path(path).size;
      // The first bytes, both sides of jobs' and blocks' borders (elements lie across them), the last ones.
      for (const uint64_t at : {uint64_t{0}, uint64_t{2}, uint64_t{7}, uint64_t{(4 << 20) - 1}, uint64_t{4 << 20}, uint64_t{(5 << 20) + 1}, uint64_t{9'100'000}, size - 1}) {
        SCOPED_TRACE(testing::Message() << name << " byte " << at << (checksums ? " with checksums" : ""));
        FileHandle file = FileHandle::open_write(path);
        std::byte byte[1];
        file.read(at, byte);
        byte[0] ^= std::byte{0x10};
        file.write(at, byte);
        const TransferResult result = scene.run(with_threads(at % 2 + 1), "data", "journal");
        scene.expect_written();
        expect_sums(scene, result);
        EXPECT_EQ(result.bytes_written, result.bytes_redone);
        EXPECT_LE(result.bytes_redone, 4u << 20);
        EXPECT_GT(result.bytes_resumed, 0u);
        redone += result.bytes_redone > 0;
      }
    }
    EXPECT_GE(redone, checksums ? 12u : 16u);   // late segments are written again in any case
  }
}

TEST(Journal, ACastIsCheckedByTheBytesThatItMade) {
  Scene scene(27);
  const TensorIndex t = scene.made.add({.dtype = DType::float32, .shape = {3000, 1000}, .cut = Cut::rows, .parts = 2});
  scene.made.write();
  scene.made.checkpoint.tensors[t].dtype = DType::bfloat16;
  scene.add_file({{t, scene.whole(t), 3, 0}}, true);
  const TransferResult first = scene.run(with_threads(2), "data", "journal");
  const std::string bytes = read_text(scene.directory / "data/out0", 1 << 30);
  EXPECT_EQ(scene.run(with_threads(1), "data", "journal").bytes_written, 0u);
  FileHandle::open_write(scene.directory / "data/out0").write(5'000'000, std::as_bytes(std::span("zz", 2)));
  const TransferResult again = scene.run(with_threads(1), "data", "journal");
  EXPECT_GT(again.bytes_redone, 0u);
  EXPECT_EQ(read_text(scene.directory / "data/out0", 1 << 30), bytes);
  EXPECT_EQ(again.tensors[t].crc64, first.tensors[t].crc64);
  EXPECT_EQ(again.tensors[t].source_crc64, first.tensors[t].source_crc64);
  EXPECT_EQ(again.tensors[t].casts, first.tensors[t].casts);
}

TEST(Journal, TornAndForeignOnesAreBegunAnew) {
  LargeScene scene(true);
  scene.run(with_threads(2), "data", "journal");
  const std::string text = read_text(scene.directory / "journal", 1 << 20);
  const size_t header = text.find('\n') + 1;
  const std::string foreign = [&] {
    std::string other = text;
    other[18] = other[18] == '0' ? '1' : '0';
    return other;
  }();
  const std::string cases[] = {"", "x", text.substr(0, 10), text.substr(0, header), text.substr(0, header + 9),
                               text.substr(0, text.size() - 1), text.substr(0, text.size() - 5) + "0000\n", foreign,
                               text + "garbage", text + "ffffffff t 0 i 0 p 0 1234567812345678\n"};
  for (const std::string& damaged : cases) {
    SCOPED_TRACE(damaged.size());
    remove_tree(scene.directory / "journal");
    write_new_file(scene.directory / "journal", damaged);
    // What the journal does not vouch for is written again.
    const std::string path = scene.directory / "data/out1";
    if (damaged.size() <= header || damaged == foreign) {
      std::string bytes = read_text(path, 1 << 30);
      bytes[12'000'000] ^= 1;
      remove_tree(path);
      write_new_file(path, bytes);
    }
    const TransferResult result = scene.run(with_threads(2), "data", "journal");
    scene.expect_written();
    expect_sums(scene, result);
  }
}

// ---- faults

struct Fault {
  const char* operation;
  int error;
};

class Faults : public testing::TestWithParam<Fault> {};

// The n-th operation fails, for all n: no success, nothing but an Error, and a second run completes the work.
TEST_P(Faults, NeverLookLikeSuccess) {
  Scene scene(30);
  for (int i = 0; i < 6; ++i) scene.made.add(random_tensor(scene.made.random));
  scene.made.add({.shape = {500, 1200}, .cut = Cut::rows, .parts = 3});
  scene.lay_out(3, true);
  bool reached = true;
  int failures = 0;
  for (int n = 1; reached; ++n) {
    const std::string name = "data" + std::to_string(n), journal = "journal" + std::to_string(n);
    std::atomic<int> count = 0;
    const std::string source = scene.made.directory();
    bool succeeded = false;
    try {
      const Hook hook([&](std::string_view operation, const std::string&) {
        return operation == GetParam().operation && ++count == n ? GetParam().error : 0;
      });
      EngineOptions options = with_threads(2);
      options.direct = n % 2;
      scene.run(options, name, journal);
      succeeded = true;
    } catch (const Error& error) {
      ++failures;
      EXPECT_EQ(error.code(), Exit::failed) << error.what();
    }
    reached = count >= n;
    // The first direct write may fail and be repeated otherwise; everything else is an error.
    EXPECT_FALSE(succeeded && reached && std::string(GetParam().operation) != "write");
    const TransferResult result = scene.run(with_threads(2), name, journal);
    scene.expect_written(name);
    expect_sums(scene, result);
    remove_tree(scene.directory / name);
    ASSERT_LT(n, 500);
  }
  EXPECT_GE(failures, 1);
}

INSTANTIATE_TEST_SUITE_P(Operations, Faults,
                         testing::Values(Fault{"write", ENOSPC}, Fault{"sync", EIO}, Fault{"read", EIO},
                                         Fault{"open", EMFILE}, Fault{"resize", ENOSPC}, Fault{"mkdir", EACCES}),
                         [](const testing::TestParamInfo<Fault>& i) { return std::string(i.param.operation); });

}  // namespace
}  // namespace fsdpctl
