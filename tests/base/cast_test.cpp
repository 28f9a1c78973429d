#include "lib/base/cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "lib/base/element.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < text.size(); i += 2) bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

bool is_nan(DType dtype, const std::byte* element) { return element_class(dtype, element) == FloatClass::nan; }

// Made by tests/data/casts/make.py with real PyTorch.
TEST(Cast, GivesWhatPyTorchGives) {
  std::ifstream file(test_data("casts/casts.json"));
  const nlohmann::json table = nlohmann::json::parse(file);
  ASSERT_EQ(table.size(), 9u);
  for (const auto& [from_name, row] : table.items()) {
    const DType from = *dtype_from_name(from_name);
    const std::vector<std::byte> in = from_hex(row["in"].get<std::string>());
    const size_t n = in.size() / item_size(from);
    for (const auto& [to_name, hex] : row["out"].items()) {
      const DType to = *dtype_from_name(to_name);
      const std::vector<std::byte> expected = from_hex(hex.get<std::string>());
      std::vector<std::byte> out(n * item_size(to) + 1);
      ASSERT_EQ(out.size(), expected.size() + 1);
      ASSERT_TRUE(can_cast(from, to));
      cast(from, to, in, std::span(out).subspan(1));   // at an odd address
      size_t wrong = 0;
      for (size_t i = 0; i < n && wrong < 5; ++i) {
        const std::byte* got = out.data() + 1 + i * item_size(to);
        const std::byte* want = expected.data() + i * item_size(to);
        if (std::memcmp(got, want, item_size(to)) == 0 || (is_nan(to, got) && is_nan(to, want))) continue;
        ++wrong;
        ADD_FAILURE() << from_name << " -> " << to_name << " of " << element_value(from, in.data() + i * item_size(from))
                      << ": expected " << element_value(to, want) << ", got " << element_value(to, got);
      }
    }
  }
}

template <class From>
CastCounts counts_of(DType from, DType to, std::vector<From> values) {
  std::vector<std::byte> out(values.size() * item_size(to));
  return cast(from, to, std::as_bytes(std::span(values)), out);
}

TEST(Cast, CountsWhatChangedOverflowedAndVanished) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const std::vector<float> values = {0.f, -0.f, 1.f, 1.0001f, 1e30f, -1e30f, 1e-30f, inf, -inf, nan, 448.f, 464.f, 464.1f};
  EXPECT_EQ(counts_of(DType::float32, DType::float16, values), (CastCounts{5, 2, 1}));
  EXPECT_EQ(counts_of(DType::float32, DType::bfloat16, values), (CastCounts{5, 0, 0}));
  // Both infinities become 448, which is a change, and 464 rounds to it, which is no overflow.
  EXPECT_EQ(counts_of(DType::float32, DType::float8_e4m3fn, values), (CastCounts{8, 3, 1}));
  EXPECT_EQ(counts_of(DType::float32, DType::float64, values), (CastCounts{}));
  EXPECT_EQ(counts_of(DType::float64, DType::float32, std::vector<double>{1.0, 0.1, 1e300, 1e-300, 16777217.0}),
            (CastCounts{4, 1, 1}));
  std::vector<float> many(5000, 0.1f);
  many.back() = 1e9f;
  EXPECT_EQ(counts_of(DType::float32, DType::float16, many), (CastCounts{5000, 1, 0}));
}

TEST(Cast, OnlyFloatingTypesAreCast) {
  EXPECT_FALSE(can_cast(DType::float32, DType::int32));
  EXPECT_FALSE(can_cast(DType::uint8, DType::float32));
  EXPECT_FALSE(can_cast(DType::complex64, DType::float32));
  EXPECT_FALSE(can_cast(DType::float4_e2m1fn_x2, DType::float32));
  EXPECT_TRUE(can_cast(DType::float8_e8m0fnu, DType::float64));
}

}  // namespace
}  // namespace fsdpctl
