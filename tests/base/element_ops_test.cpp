#include "lib/base/element_ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <complex>
#include <cstdint>
#include <cstring>
#include <vector>

namespace fsdpctl {
namespace {

// The value after `operation`, at an odd address and between neighbours that must not change.
template <class T, class Operation>
T after(T value, Operation operation) {
  std::vector<std::byte> memory(3 * sizeof(T) + 1, std::byte{0x5A});
  std::memcpy(memory.data() + 1 + sizeof(T), &value, sizeof value);
  operation(std::span(memory).subspan(1 + sizeof(T), sizeof(T)));
  T result;
  std::memcpy(&result, memory.data() + 1 + sizeof(T), sizeof result);
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool inside = i > sizeof(T) && i <= 2 * sizeof(T);
    EXPECT_TRUE(inside || memory[i] == std::byte{0x5A});
  }
  return result;
}

TEST(ElementOps, SwapReversesElementsAndHalvesOfComplexOnes) {
  EXPECT_EQ(after(uint16_t{0x1234}, [](auto s) { swap_bytes(DType::bfloat16, s); }), 0x3412);
  EXPECT_EQ(after(uint32_t{0x12345678}, [](auto s) { swap_bytes(DType::float32, s); }), 0x78563412u);
  EXPECT_EQ(after(uint64_t{0x0102030405060708}, [](auto s) { swap_bytes(DType::int64, s); }), 0x0807060504030201u);
  EXPECT_EQ(after(uint64_t{0x0102030405060708}, [](auto s) { swap_bytes(DType::complex64, s); }), 0x0403020108070605u);
  EXPECT_EQ(after(uint8_t{7}, [](auto s) { swap_bytes(DType::uint8, s); }), 7);
}

TEST(ElementOps, NegateAndConjugate) {
  EXPECT_EQ(after(2.5f, [](auto s) { negate(DType::float32, s); }), -2.5f);
  EXPECT_EQ(std::bit_cast<uint64_t>(after(0.0, [](auto s) { negate(DType::float64, s); })), uint64_t{1} << 63);
  EXPECT_EQ(after(int16_t{-7}, [](auto s) { negate(DType::int16, s); }), 7);
  EXPECT_EQ(after(uint8_t{1}, [](auto s) { negate(DType::uint8, s); }), 255);
  using C = std::complex<double>;
  EXPECT_EQ(after(C{1, 2}, [](auto s) { negate(DType::complex128, s); }), C(-1, -2));
  EXPECT_EQ(after(C{1, 2}, [](auto s) { conjugate(DType::complex128, s); }), C(1, -2));
  EXPECT_EQ(after(std::complex<float>{1, 2}, [](auto s) { conjugate(DType::complex64, s); }), std::complex<float>(1, -2));
  EXPECT_EQ(after(uint32_t{0x3C003C00}, [](auto s) { conjugate(DType::complex32, s); }), 0xBC003C00u);
  EXPECT_EQ(after(2.5f, [](auto s) { conjugate(DType::float32, s); }), 2.5f);
}

}  // namespace
}  // namespace fsdpctl
