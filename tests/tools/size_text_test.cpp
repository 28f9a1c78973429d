#include "tools/size_text.h"

#include <gtest/gtest.h>

namespace fsdpctl {
namespace {

TEST(SizeText, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("64KiB"), 65536u);
  EXPECT_EQ(parse_size("1.5 GiB"), 1610612736u);
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_size("2mb"), 2'000'000u);
  EXPECT_EQ(parse_size("1B"), 1u);
}

TEST(SizeText, RefusesWhatIsNoSize) {
  for (const char* text : {"", " ", "MiB", "-1", "0", "0.0001", "1e3", "4 furlongs", "12MiBs", "nan", "inf",
                           "9999999TiB", "0x10", "1,5GiB"}) {
    EXPECT_FALSE(parse_size(text)) << text;
  }
}

TEST(SizeText, PrintsOneDigitAndNeverATooLargeNumber) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1024), "1.0 KiB");
  EXPECT_EQ(size_text((1 << 20) - 1), "1.0 MiB");  // not "1024.0 KiB"
  EXPECT_EQ(size_text(18790481920), "17.5 GiB");
  EXPECT_EQ(size_text(~0ull), "16.0 EiB");
}

TEST(SizeText, GroupsDigits) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(1234567), "1,234,567");
}

}  // namespace
}  // namespace fsdpctl
