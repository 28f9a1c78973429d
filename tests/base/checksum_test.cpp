#include "lib/base/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "lib/base/crc_polynomial.h"

namespace fsdpctl {
namespace {

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> random_bytes(size_t count, std::mt19937_64& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> counting_bytes(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

// Expected values: fastcrc.crc64.xz, zlib.crc32 and hashlib.sha256 in Python.
TEST(Checksum, EqualsPythonsValues) {
  EXPECT_EQ(hex64(crc64(bytes_of("123456789"))), "995dc9bbdf1939fa");
  EXPECT_EQ(crc64({}), 0u);
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xCBF43926u);
  const auto bytes = counting_bytes(10'000);
  EXPECT_EQ(hex64(crc64(bytes)), "e6e6fa5bebbee6aa");
  EXPECT_EQ(crc32(bytes), 0xA8A50E01u);
  Sha256 sha;
  sha.update(Bytes(bytes).first(63));
  sha.update(Bytes(bytes).subspan(63));
  EXPECT_EQ(sha.hex(), "c6bec1a98cf1c8f350c1ca9cd7ed598ae4e74e32ef95e8396cfd64129c34dc24");
}

TEST(Checksum, ContributionsOfAnyCutsInAnyOrderAddUp) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto whole = random_bytes(random() % 3000, random);
    std::vector<size_t> cuts = {0, whole.size()};
    for (uint64_t n = random() % 6; n > 0; --n) cuts.push_back(random() % (whole.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    uint64_t sum = 0;
    for (size_t i = cuts.size() - 1; i > 0; --i) {
      const Bytes run = Bytes(whole).subspan(cuts[i - 1], cuts[i] - cuts[i - 1]);
      sum ^= crc64_shift(crc64_raw(run), whole.size() - cuts[i]);
    }
    EXPECT_EQ(sum, crc64_raw(whole));
    EXPECT_EQ(crc64_finish(sum, whole.size()), crc64(whole));
  }
}

TEST(Checksum, RawOfZerosIsZeroAndLeadingZerosDoNotCount) {
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(crc64_raw(bytes), 0u);
  bytes[99] = std::byte{1};
  EXPECT_EQ(crc64_raw(bytes), crc64_raw(Bytes(bytes).last(1)));
}

TEST(Checksum, StepShiftsAsShiftDoes) {
  for (uint64_t distance : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{1} << 40, ~uint64_t{0}}) {
    EXPECT_EQ(Crc64Step(distance).shift(0x123456789abcdef0), crc64_shift(0x123456789abcdef0, distance)) << distance;
  }
}

TEST(Checksum, ShiftsByBigDistancesCompose) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    const uint64_t raw = random(), a = random() >> 2, b = random() >> 2;
    EXPECT_EQ(crc64_shift(crc64_shift(raw, a), b), crc64_shift(raw, a + b));
  }
}

TEST(Checksum, Crc32ChainsAndCombines) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto whole = random_bytes(random() % 2000, random);
    const size_t cut = random() % (whole.size() + 1);
    const Bytes first = Bytes(whole).first(cut), second = Bytes(whole).subspan(cut);
    EXPECT_EQ(crc32(second, crc32(first)), crc32(whole));
    EXPECT_EQ(crc32_combine(crc32(first), crc32(second), second.size()), crc32(whole));
  }
}

TEST(CrcPolynomial, FastAndPlainProductsAreEqual) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t a = random(), b = round % 64 == 0 ? uint64_t{1} << (round / 64) : random();
    EXPECT_EQ(crc64_multiply(a, b), crc64_multiply_plain(a, b));
    EXPECT_EQ(crc64_multiply(a, uint64_t{1} << 63), a);
    const auto c = static_cast<uint32_t>(a), d = static_cast<uint32_t>(b);
    EXPECT_EQ(crc32_multiply(c, d), crc32_multiply_plain(c, d));
    EXPECT_EQ(crc32_multiply(c, uint32_t{1} << 31), c);
  }
}

}  // namespace
}  // namespace fsdpctl
