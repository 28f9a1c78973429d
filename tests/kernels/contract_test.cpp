// What kernels.h promises besides arithmetic: copies, memory, and tables that break the rules.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "lib/base/finding.h"
#include "kernels/scalars.h"
#include "tests/kernels/implementations.h"

namespace fsdpctl::kernels {
namespace {

constexpr FloatType f32 = FloatType::float32, bf16 = FloatType::bfloat16;

class Contract : public KernelsTest {
 protected:
  template <class Call>
  void expect_refused(Call call, const std::string& why) {
    try {
      call();
      FAIL() << "not refused: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::failed);
      EXPECT_NE(error.finding().found.find(why), std::string::npos) << error.what();
    }
  }
};

// State leaves for pinned memory and comes back, in many parts, while the kernels go on.
TEST_P(Contract, CopiesThereAndBack) {
  std::vector<float> values(300000);
  std::iota(values.begin(), values.end(), 1.0f);
  float* state = upload(values);
  auto* host = static_cast<float*>(kernels().allocate_host(values.size() * sizeof(float)));
  std::vector<CopyEntry> out, back;
  for (size_t at = 0; at < values.size(); at += 70000) {
    const size_t n = std::min<size_t>(70000, values.size() - at);
    out.push_back({state + at, host + at, n * sizeof(float)});
    back.push_back({host + at, state + at, n * sizeof(float)});
  }
  out.push_back({nullptr, nullptr, 0});
  kernels().wait(kernels().copy(out, Direction::to_host));
  EXPECT_EQ(std::vector<float>(host, host + values.size()), values);
  // The copy begins after the kernels given before it, and kernels given after fence() begin after the copy.
  const GradientEntry clear{state, state, values.size(), f32, 0};
  GradientNorm ignored{};
  kernels().unscale_norm({&clear, 1}, 0, {&ignored, 1});
  const CopyTicket ticket = kernels().copy(back, Direction::to_device);
  kernels().fence(ticket);
  const GradientEntry twice{state, state, values.size(), f32, 0};
  kernels().unscale_norm({&twice, 1}, 2, {&ignored, 1});
  kernels().wait(ticket);
  kernels().wait(ticket);   // once more is harmless
  const std::vector<float> after = download(state, values.size());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(after[i], 2 * values[i]);
  kernels().release_host(host);
}

TEST_P(Contract, MemoryIsAligned) {
  for (const size_t bytes : {1, 4096, 1000000}) {
    void* device = kernels().allocate(bytes);
    void* host = kernels().allocate_host(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device) % 256, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % 256, 0u);
    kernels().release(device);
    kernels().release_host(host);
  }
  EXPECT_EQ(kernels().allocate(0), nullptr);
  kernels().release(nullptr);
}

TEST_P(Contract, EmptyTables) {
  kernels().cast({}, {});
  kernels().restore({}, {});
  kernels().adam({}, {});
  kernels().sgd({}, {});
  GradientNorm norm{};
  kernels().unscale_norm({}, 1, {&norm, 1});
  EXPECT_EQ(value(norm.squares), 0.0);
  kernels().unscale_norm({}, 1, {});
  kernels().wait(kernels().copy({}, Direction::to_host));
}

TEST_P(Contract, RowsThatBreakTheRulesAreRefusedBeforeAnythingChanges) {
  float* memory = upload(std::vector<float>(64, 1.0f));
  auto* halves = reinterpret_cast<std::byte*>(memory);
  const CastEntry good{memory, halves + 128, 8, f32, bf16};
  const auto cast = [&](const CastEntry& bad) {
    const CastEntry table[] = {good, bad};
    return [this, table] { kernels().cast(table, {}); };
  };
  expect_refused(cast({nullptr, halves, 8, f32, bf16}), "null");
  expect_refused(cast({memory, halves + 1, 8, f32, bf16}), "misaligned");
  expect_refused(cast({memory, halves, uint64_t{1} << 41, f32, bf16}), "too many");
  expect_refused(cast({memory, halves, 8, static_cast<FloatType>(9), bf16}), "unknown element type");
  expect_refused([&] { CastCounts counts[2]; kernels().cast({&good, 1}, counts); }, "another number");
  const RestoreEntry huge{memory, halves, {1 << 20, 1 << 20, 1 << 20, 1 << 20}, {}, {}, f32, bf16};
  expect_refused([&] { kernels().restore({&huge, 1}, {}); }, "too many");
  GradientNorm norm{};
  const GradientEntry stray{memory, nullptr, 8, f32, 1};
  expect_refused([&] { kernels().unscale_norm({&stray, 1}, 1, {&norm, 1}); }, "index");
  const AdamScalars scalars = adamw_scalars({}, 1, 1);
  const AdamEntry no_moment{memory, memory + 8, memory + 16, nullptr, nullptr, 8, f32, f32, 0, 0};
  expect_refused([&] { kernels().adam({&no_moment, 1}, {&scalars, 1}); }, "null");
  const SgdScalars momentum = sgd_scalars({0.1, 0.9, 0}, true, 1);
  const SgdEntry no_buffer{memory, memory + 8, nullptr, nullptr, 8, f32, f32, 0, 0};
  expect_refused([&] { kernels().sgd({&no_buffer, 1}, {&momentum, 1}); }, "null");
  EXPECT_EQ(download(memory, 64), std::vector<float>(64, 1.0f));
}

INSTANTIATE_TEST_SUITE_P(All, Contract, testing::ValuesIn(implementations()), name_of);

TEST(FloatTypes, OfCheckpoints) {
  EXPECT_EQ(float_type(DType::bfloat16), bf16);
  EXPECT_EQ(float_size(float_type(DType::float16)), 2u);
  EXPECT_THROW(float_type(DType::float64), Error);
}

}  // namespace
}  // namespace fsdpctl::kernels
