#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "lib/base/checksum.h"
#include "lib/ckpt/engine.h"
#include "tests/support/error_of.h"
#include "tests/support/written_checkpoint.h"

namespace fsdpctl {
namespace {

EngineOptions with_threads(int threads) {
  EngineOptions options;
  options.threads = threads;
  options.max_memory = 8 << 20;
  return options;
}

TEST(Fingerprint, IsTheCrcOfEachTensorWhateverTheThreads) {
  WrittenCheckpoint made(1);
  for (int i = 0; i < 60; ++i) made.add(random_tensor(made.random));
  made.add({.shape = {1100, 900}, .cut = Cut::grid, .parts = 3, .crc32 = true});
  made.add({.dtype = DType::complex128, .shape = {3000, 70}, .order = Order::transposed});
  made.add({.dtype = DType::uint8, .shape = {5'000'001}, .cut = Cut::rows, .parts = 2, .crc32 = true});
  made.write();
  for (const int threads : {1, 2, 5}) {
    const std::vector<TensorSum> sums = fingerprint(made.checkpoint, {}, with_threads(threads));
    ASSERT_EQ(sums.size(), made.content.size());
    for (size_t t = 0; t < sums.size(); ++t) {
      EXPECT_EQ(sums[t].crc64, crc64(as_bytes(made.content[t])));
      EXPECT_EQ(sums[t].source_crc64, sums[t].crc64);
    }
  }
  const std::vector<TensorIndex> some = {60, 3};
  const std::vector<TensorSum> sums = fingerprint(made.checkpoint, some, with_threads(2));
  for (size_t t = 0; t < sums.size(); ++t) {
    EXPECT_EQ(sums[t].crc64, t == 3 || t == 60 ? crc64(as_bytes(made.content[t])) : 0) << t;
  }
}

TEST(Fingerprint, ProgressReachesTheTotalAndCancelEndsIt) {
  WrittenCheckpoint made(2);
  made.add({.shape = {3000, 1000}});
  made.write();
  EngineOptions options = with_threads(2);
  std::atomic<bool> cancel = false;
  options.cancel = &cancel;
  uint64_t last = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_LT(last, done);
    EXPECT_EQ(total, 12'000'000u);
    last = done;
  };
  fingerprint(made.checkpoint, {}, options);
  EXPECT_GT(last, 11'000'000u);
  options.progress = [&](uint64_t, uint64_t) { cancel = true; };
  EXPECT_EQ(error_of([&] { fingerprint(made.checkpoint, {}, options); }).code, Exit::interrupted);
}

TEST(Fingerprint, DamageIsThrownOrReportedForEachTensor) {
  WrittenCheckpoint made(3);
  for (int i = 0; i < 20; ++i) made.add({.shape = {100, 100}, .cut = Cut::rows, .parts = 2, .crc32 = true});
  made.write();
  const std::vector<TensorIndex> bad = {4, 11, 19};
  for (TensorIndex t : bad) made.checkpoint.pieces[2 * t + 1].crc32 ^= 7;
  EXPECT_EQ(error_of([&] { fingerprint(made.checkpoint, {}, with_threads(2)); }).what, "zip member checksum mismatch");

  EngineOptions options = with_threads(3);
  std::vector<TensorIndex> reported;
  options.on_damage = [&](TensorIndex t, const Error& error) {
    reported.push_back(t);
    EXPECT_EQ(error.finding().where.key, "tensor" + std::to_string(t));
  };
  const std::vector<TensorSum> sums = fingerprint(made.checkpoint, {}, options);
  std::sort(reported.begin(), reported.end());
  EXPECT_EQ(reported, bad);
  for (TensorIndex t = 0; t < 20; ++t) {
    const bool is_bad = std::find(bad.begin(), bad.end(), t) != bad.end();
    EXPECT_EQ(sums[t].crc64, is_bad ? 0 : crc64(as_bytes(made.content[t])));
  }
}

TEST(Fingerprint, CastsGiveBothSums) {
  WrittenCheckpoint made(4);
  const TensorIndex t = made.add({.shape = {1000, 1000}, .cut = Cut::rows, .parts = 3});
  made.write();
  made.checkpoint.tensors[t].dtype = DType::float16;
  std::string expected(made.content[t].size() / 2, '\0');
  const CastCounts counts =
      cast(DType::float32, DType::float16, as_bytes(made.content[t]), std::as_writable_bytes(std::span(expected)));
  const TensorSum sum = fingerprint(made.checkpoint, {}, with_threads(3))[t];
  EXPECT_EQ(sum.source_crc64, crc64(as_bytes(made.content[t])));
  EXPECT_EQ(sum.crc64, crc64(as_bytes(expected)));
  EXPECT_EQ(sum.casts, counts);
}

TEST(ReadTensor, GivesEveryByteInOrder) {
  WrittenCheckpoint made(5);
  for (int i = 0; i < 30; ++i) made.add(random_tensor(made.random));
  made.add({.dtype = DType::complex64, .shape = {900, 700}, .cut = Cut::columns, .parts = 3, .order = Order::transposed});
  made.write();
  for (TensorIndex t = 0; t < made.content.size(); ++t) {
    std::string got;
    read_tensor(made.checkpoint, t, with_threads(1), [&](uint64_t offset, std::span<const std::byte> bytes) {
      EXPECT_EQ(offset, got.size());
      got.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
    EXPECT_TRUE(got == made.content[t]);
  }
}

TEST(CheckpointFingerprint, IsTheCrcOfSortedLines) {
  WrittenCheckpoint made(6);
  made.add({.shape = {2, 3}});
  made.add({.dtype = DType::int64, .shape = {}});
  made.add({.dtype = DType::uint8, .shape = {24}});
  made.write();
  Checkpoint& c = made.checkpoint;
  c.tensors[2].role = Role::storage;
  c.tensors[2].key = "odd.args.0";
  const Value weight = Value::tensor({0, false, false});
  c.tree = Value::mapping(Kind::dict, {{Value::string("w"), weight},
                                       {Value::string("step"), Value::tensor({1, false, false})},
                                       {Value::string("b"), Value::sequence(Kind::list, {Value::integer(1)})},
                                       {Value::string("alias"), weight}});
  const std::vector<TensorSum> sums = {{1, 0xAB, {}}, {2, 0xCD, {}}, {3, 0xEF, {}}};
  const std::string json = hex64(crc64(as_bytes("[1]")));
  const std::string lines =
      "alias\tfloat32\t[2,3]\t00000000000000ab\n"
      "b\tjson\t\t" + json + "\n"
      "odd.args.0\tstorage\t[24]\t00000000000000ef\n"
      "step\tint64\t[]\t00000000000000cd\n"
      "w\tfloat32\t[2,3]\t00000000000000ab\n";
  EXPECT_EQ(hex64(checkpoint_fingerprint(c, sums)), hex64(crc64(as_bytes(lines))));
}

}  // namespace
}  // namespace fsdpctl
