#include "lib/base/element.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace fsdpctl {
namespace {

double one(DType dtype, uint64_t bits) {
  std::array<std::byte, 16> raw{};
  std::memcpy(raw.data(), &bits, sizeof bits);
  return element_value(dtype, raw.data());
}

TEST(Element, SmallFloatsHaveTheValuesThatTorchGivesThem) {
  EXPECT_EQ(one(DType::float16, 0x3C00), 1.0);
  EXPECT_EQ(one(DType::float16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(one(DType::float16, 0xFC00), -INFINITY);
  EXPECT_EQ(one(DType::bfloat16, 0x3F80), 1.0);
  EXPECT_EQ(one(DType::float8_e4m3fn, 0x7E), 448.0);
  EXPECT_TRUE(std::isnan(one(DType::float8_e4m3fn, 0xFF)));
  EXPECT_EQ(one(DType::float8_e5m2, 0x7B), 57344.0);
  EXPECT_EQ(one(DType::float8_e5m2, 0x7C), INFINITY);
  EXPECT_EQ(one(DType::float8_e4m3fnuz, 0x7F), 240.0);
  EXPECT_EQ(one(DType::float8_e5m2fnuz, 0x7F), 57344.0);
  EXPECT_TRUE(std::isnan(one(DType::float8_e5m2fnuz, 0x80)));
  EXPECT_EQ(one(DType::float8_e8m0fnu, 127), 1.0);
  EXPECT_EQ(one(DType::int8, 0xFF), -1.0);
  EXPECT_EQ(one(DType::uint8, 0xFF), 255.0);
}

TEST(Element, ComplexHasTwoPartsAndTheWorseClass) {
  const float parts[2] = {1.5F, NAN};
  std::array<std::byte, 8> raw{};
  std::memcpy(raw.data(), parts, sizeof parts);
  EXPECT_EQ(element_parts(DType::complex64, raw.data()).first, 1.5);
  EXPECT_EQ(element_class(DType::complex64, raw.data()), FloatClass::nan);
  EXPECT_FALSE(is_numeric(DType::bits8));
  EXPECT_FALSE(is_numeric(DType::float4_e2m1fn_x2));
}

}  // namespace
}  // namespace fsdpctl
