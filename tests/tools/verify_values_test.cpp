// Values that no tensor of their dtype has.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

using namespace std::string_literals;

const std::string kTruths = "\x01\x00\x01\x01\x00\x00\x01\x00\x01\x01\x01\x00\x00\x01\x00\x01"s;

std::string safetensors_of(const std::string& booleans) {
  std::string header = R"({"mask":{"dtype":"BOOL","shape":[16],"data_offsets":[0,16]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + booleans;
}

void expect_wrong_bool(const std::string& path) {
  const ProcessResult result = run_fsdpctl({"verify", "--data", path});
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
  EXPECT_NE((result.out + result.err).find("bool is neither false nor true"), std::string::npos) << result.out << result.err;
  EXPECT_NE((result.out + result.err).find("2 at element 3, and 1 more"), std::string::npos) << result.out << result.err;
}

TEST(VerifyValues, BoolsHaveTwoValues) {
  const TempDir work;
  std::string wrong = kTruths;
  wrong[3] = 2;
  wrong[9] = '\xff';
  put_file(work / "good.safetensors", safetensors_of(kTruths));
  put_file(work / "wrong.safetensors", safetensors_of(wrong));
  EXPECT_EQ(run_fsdpctl({"verify", "--data", work / "good.safetensors"}).exit_code, 0);
  expect_wrong_bool(work / "wrong.safetensors");

  ASSERT_EQ(run_fsdpctl({"convert", work / "good.safetensors", "-o", work / "x.h5", "--to", "hdf5"}).exit_code, 0);
  std::filesystem::remove(work / "x.h5.fsdpctl.json");
  EXPECT_EQ(run_fsdpctl({"verify", "--data", work / "x.h5"}).exit_code, 0);
  std::string file = get_file(work / "x.h5");
  ASSERT_NE(file.find(kTruths), std::string::npos);
  put_file(work / "x.h5", file.replace(file.find(kTruths), kTruths.size(), wrong));
  expect_wrong_bool(work / "x.h5");
}

}  // namespace
}  // namespace fsdpctl
