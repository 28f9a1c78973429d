#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <set>

#include "lib/train/data/batches.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::train {
namespace {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string with_header(uint32_t magic, uint32_t version, uint32_t count, const std::string& data) {
  std::vector<uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + data;
}

class TokenFileTest : public ::testing::Test {
 protected:
  std::string file(const std::string& content) {
    const std::string path = join_path(dir_.path(), "f" + std::to_string(++files_));
    write_new_file(path, content);
    return path;
  }
  static std::vector<int64_t> all(const TokenFile& file) {
    std::vector<int64_t> tokens(file.size());
    file.read(0, tokens);
    return tokens;
  }
  TempDir dir_;
  int files_ = 0;
};

TEST_F(TokenFileTest, TextIsBytes) {
  EXPECT_EQ(all(TokenFile::open_text(file("a\xff z"))), (std::vector<int64_t>{97, 255, 32, 122}));
}

TEST_F(TokenFileTest, HeadersOfLlmC) {
  const std::vector<uint16_t> narrow = {1, 65535, 3};
  const std::vector<uint32_t> wide = {1, 128000};
  EXPECT_EQ(all(TokenFile::open_tokens(file(with_header(20240520, 1, 3, bytes_of(narrow))), {})), (std::vector<int64_t>{1, 65535, 3}));
  const TokenFile llama = TokenFile::open_tokens(file(with_header(20240801, 7, 2, bytes_of(wide))), {});
  EXPECT_EQ(llama.dtype(), DType::uint32);
  EXPECT_EQ(all(llama), (std::vector<int64_t>{1, 128000}));
}

TEST_F(TokenFileTest, RefusesWhatDoesNotFit) {
  const std::string data = bytes_of(std::vector<uint16_t>{1, 2, 3});
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(data), {}); }).code, Exit::usage);
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(data), DType::uint32); }).what, "token file ends within an id");
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(data), DType::float32); }).code, Exit::usage);
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(with_header(20240520, 1, 4, data)), {}); }).what, "token file is cut short");
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(with_header(20240520, 1, 2, data)), {}); }).what,
            "token file is longer than its header says");
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(with_header(20240520, 1, 3, data)), DType::uint32); }).what,
            "token file is of another dtype");
}

TEST_F(TokenFileTest, HeadersThatAreNoneOfLlmCs) {
  const std::string data = bytes_of(std::vector<uint16_t>{1, 2, 3});
  const Finding version = error_of([&] { TokenFile::open_tokens(file(with_header(20240520, 2, 3, data)), DType::uint16); });
  EXPECT_EQ(version.code, Exit::unsupported);
  EXPECT_EQ(version.found, "2");
  // Cut within the header, even where a dtype is given.
  const std::string short_one = with_header(20240520, 1, 3, data).substr(0, 1000);
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(short_one), DType::uint16); }).what, "token file is cut short");
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(with_header(20240520, 1, 0xFFFFFFFF, data)), {}); }).what, "token file is cut short");
  // Other numbers are ids.
  EXPECT_EQ(TokenFile::open_tokens(file(with_header(1, 1, 3, data)), DType::uint16).size(), 512u + 3);
}

TEST_F(TokenFileTest, AFileThatIsCutShortLaterIsAnError) {
  const std::string path = file(std::string(1 << 16, 'a'));
  const TokenFile tokens = TokenFile::open_text(path);
  std::vector<int64_t> window(100);
  tokens.read((1 << 16) - 100, window);
  FileHandle::open_write(path).resize(1000);
  const Finding finding = error_of([&] { tokens.read((1 << 16) - 100, window); });
  EXPECT_EQ(finding.code, Exit::failed);
  EXPECT_EQ(finding.where.path, path);
  tokens.read(0, window);   // what is there can be read
}

TEST_F(TokenFileTest, LargerThanMemoryIsNoMatter) {
  constexpr uint64_t kTokens = uint64_t{1} << 36;   // 256 GiB of zeros that the disk does not have
  const std::string path = file("");
  FileHandle sparse = FileHandle::open_write(path);
  sparse.resize(kTokens * 4);
  const std::vector<uint32_t> last = {7, 128255};
  sparse.write((kTokens - 2) * 4, std::as_bytes(std::span(last)));
  const TokenFile tokens = TokenFile::open_tokens(path, DType::uint32);
  EXPECT_EQ(tokens.size(), kTokens);
  std::vector<int64_t> window(3);
  tokens.read(kTokens - 3, window);
  EXPECT_EQ(window, (std::vector<int64_t>{0, 7, 128255}));
}

TEST_F(TokenFileTest, IdsOfTextAreChecked) {
  TokenFile::open_text(file("plain")).check(128);
  EXPECT_EQ(error_of([&] { TokenFile::open_text(file("na\xc3\xafve")).check(128); }).where.offset, 2u);
}

TEST_F(TokenFileTest, ChecksIds) {
  const TokenFile tokens = TokenFile::open_tokens(file(bytes_of(std::vector<uint16_t>{1, 2, 50, 3})), DType::uint16);
  tokens.check(51);
  const Finding finding = error_of([&] { tokens.check(50); });
  EXPECT_EQ(finding.where.offset, 4u);
  EXPECT_EQ(finding.found, "50");
  EXPECT_EQ(finding.code, Exit::usage);
  const std::string far = with_header(20240801, 7, 3'000'000, std::string(11'999'996, '\0') + std::string("\1\0\0\x80", 4));
  const TokenFile last = TokenFile::open_tokens(file(far), {});
  EXPECT_EQ(error_of([&] { last.check(128'256); }).where.offset, 1024u + 11'999'996);   // beyond 31 bits, after the first chunk

  std::vector<uint32_t> wide(100);
  std::iota(wide.begin(), wide.end(), 1);
  EXPECT_EQ(error_of([&] { TokenFile::open_tokens(file(bytes_of(wide)), DType::uint16).check(1000); }).what,
            "every second token id is zero");
}

class BatchesTest : public TokenFileTest {
 protected:
  // Two files of 41 and 22 tokens that count up from 0 and 100.
  std::vector<TokenFile> two_files() {
    std::vector<uint16_t> first(41), second(22);
    std::iota(first.begin(), first.end(), 0);
    std::iota(second.begin(), second.end(), 100);
    std::vector<TokenFile> files;
    files.push_back(TokenFile::open_tokens(file(bytes_of(first)), DType::uint16));
    files.push_back(TokenFile::open_tokens(file(bytes_of(second)), DType::uint16));
    return files;
  }
};

TEST_F(BatchesTest, WindowsOverlapByOneToken) {
  const Batches batches(two_files(), {10, 2, false, 0});
  EXPECT_EQ(batches.samples_per_epoch(), 4u + 2u);
  const at::Tensor tokens = batches.tokens(2, 1);   // samples 4 and 5: the second file
  EXPECT_EQ(tokens.sizes(), (std::vector<int64_t>{2, 11}));
  EXPECT_EQ(tokens[0][0].item<int64_t>(), 100);
  EXPECT_EQ(tokens[0][10].item<int64_t>(), 110);
  EXPECT_EQ(tokens[1][0].item<int64_t>(), 110);
  EXPECT_TRUE(at::equal(batches.tokens(0, 0), batches.tokens(6, 0)));   // the next epoch
}

TEST_F(BatchesTest, EveryEpochUsesEverySampleOnceInAnOrderOfItsOwn) {
  const Batches batches(two_files(), {5, 1, true, 7});
  const uint64_t count = batches.samples_per_epoch();
  std::vector<std::vector<int64_t>> orders;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (uint64_t i = 0; i < count; ++i) order.push_back(batches.tokens(epoch * count, i)[0][0].item<int64_t>());
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), count);
    orders.push_back(order);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

TEST_F(BatchesTest, APositionIsAllThatIsNeededToGoOn) {
  const Batches before(two_files(), {5, 2, true, 7}), after(two_files(), {5, 2, true, 7});
  EXPECT_TRUE(at::equal(before.tokens(4, 3), after.tokens(10, 0)));
  const Batches other(two_files(), {5, 2, true, 8});
  EXPECT_FALSE(at::equal(before.tokens(0, 0), other.tokens(0, 0)) && at::equal(before.tokens(0, 1), other.tokens(0, 1)));
}

TEST_F(BatchesTest, TooShort) {
  EXPECT_EQ(error_of([&] { Batches(two_files(), {41, 1, true, 0}); }).what, "the data is shorter than one sequence");
}

TEST(Shuffle, IsAPermutation) {
  for (uint64_t count = 1; count < 300; ++count) {
    std::vector<bool> seen(count);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t to = shuffled(i, count, 3);
      ASSERT_LT(to, count);
      ASSERT_FALSE(seen[to]);
      seen[to] = true;
    }
  }
}

}  // namespace
}  // namespace fsdpctl::train
