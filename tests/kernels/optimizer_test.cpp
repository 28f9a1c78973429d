// Optimizers against the formulas written down again, one rounding per operation.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/scalars.h"
#include "tests/kernels/implementations.h"

namespace fsdpctl::kernels {
namespace {

constexpr FloatType f32 = FloatType::float32, f16 = FloatType::float16, bf16 = FloatType::bfloat16;
constexpr FloatType kTypes[] = {f32, f16, bf16};

// Each operation is its own, whatever the compiler would like to contract.
float rounded(float x) {
  const volatile float stored = x;
  return stored;
}

struct State {
  std::vector<float> gradient, master, moment1, moment2;
};

State random_state(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  State s;
  for (size_t i = 0; i < n; ++i) {
    s.gradient.push_back(normal(random) * 100);
    s.master.push_back(normal(random));
    s.moment1.push_back(normal(random) * 0.1f);
    s.moment2.push_back(normal(random) * normal(random) * 0.01f);
    if (s.moment2.back() < 0) s.moment2.back() = -s.moment2.back();
  }
  return s;
}

// The gradient as FP32 values that `type` can hold.
void restrict_to(FloatType type, std::vector<float>& values) {
  for (float& x : values) {
    if (type == f16) x = widen_float16(narrow_float16(x));
    if (type == bf16) x = widen_bfloat16(narrow_bfloat16(x));
  }
}

std::vector<uint16_t> halves(FloatType type, const std::vector<float>& values) {
  std::vector<uint16_t> out;
  for (const float x : values) out.push_back(type == f16 ? narrow_float16(x) : narrow_bfloat16(x));
  return out;
}

void reference_adam(State& s, const AdamOptions& o, int step, float f, bool decoupled) {
  const auto lr = o.lr, bc1 = 1 - std::pow(o.beta1, step), bc2 = 1 - std::pow(o.beta2, step);
  const auto one_b1 = static_cast<float>(1 - o.beta1), b2 = static_cast<float>(o.beta2), one_b2 = static_cast<float>(1 - o.beta2);
  for (size_t i = 0; i < s.master.size(); ++i) {
    float g = rounded(s.gradient[i] * f), w = s.master[i], m = s.moment1[i], v = s.moment2[i];
    if (decoupled) {
      w = rounded(w * static_cast<float>(1 - lr * o.weight_decay));
    } else if (o.weight_decay != 0) {
      g = std::fma(static_cast<float>(o.weight_decay), w, g);
    }
    m = std::fma(one_b1, rounded(g - m), m);
    v = rounded(v * b2);
    v = std::fma(rounded(one_b2 * g), g, v);
    const float root = rounded(std::sqrt(v));
    const float denominator = rounded(rounded(root / static_cast<float>(std::sqrt(bc2))) + static_cast<float>(o.eps));
    const float numerator = rounded(static_cast<float>(-(lr / bc1)) * m);
    w = rounded(w + rounded(numerator / denominator));
    s.master[i] = w, s.moment1[i] = m, s.moment2[i] = v;
  }
}

void reference_sgd(State& s, const SgdOptions& o, bool first, float f) {
  for (size_t i = 0; i < s.master.size(); ++i) {
    float g = rounded(s.gradient[i] * f);
    if (o.weight_decay != 0) g = std::fma(static_cast<float>(o.weight_decay), s.master[i], g);
    float m = g;
    if (o.momentum != 0) {
      if (!first) m = rounded(rounded(static_cast<float>(o.momentum) * s.moment1[i]) + g);
      s.moment1[i] = m;
    }
    s.master[i] = std::fma(static_cast<float>(-o.lr), m, s.master[i]);
  }
}

class Optimizer : public KernelsTest {
 protected:
  struct Uploaded {
    const void* gradient;
    float *master, *moment1, *moment2;
    void* parameter;
  };
  Uploaded upload_state(const State& s, FloatType gradient_type, FloatType parameter_type, bool parameter, size_t shift) {
    const size_t n = s.master.size();
    const void* gradient = gradient_type == f32 ? static_cast<const void*>(upload(s.gradient, shift))
                                                : upload(halves(gradient_type, s.gradient), shift);
    void* copy = nullptr;
    if (parameter) {
      copy = parameter_type == f32 ? static_cast<void*>(uninitialised<float>(n + 1) + shift % 2)
                                   : uninitialised<uint16_t>(n + 1) + shift % 2;
    }
    return {gradient, upload(s.master, shift / 2), upload(s.moment1, shift), upload(s.moment2, shift), copy};
  }
  // Bit for bit, except that one NaN is as good as another.
  void expect_state(const Uploaded& u, const State& expected, FloatType parameter_type) {
    const size_t n = expected.master.size();
    expect_same(download(u.master, n), expected.master, "master");
    expect_same(download(u.moment1, n), expected.moment1, "moment1");
    expect_same(download(u.moment2, n), expected.moment2, "moment2");
    if (u.parameter == nullptr) return;
    if (parameter_type == f32) {
      expect_same(download(static_cast<const float*>(u.parameter), n), expected.master, "parameter");
    } else {
      EXPECT_EQ(download(static_cast<const uint16_t*>(u.parameter), n), halves(parameter_type, expected.master));
    }
  }
  static void expect_same(const std::vector<float>& actual, const std::vector<float>& expected, const char* what) {
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(bits_of(actual[i]), bits_of(expected[i])) << what << " " << i;
  }
};

// Rows of several types, sizes, alignments and groups in one table.
TEST_P(Optimizer, AdamAndAdamW) {
  const std::vector<size_t> sizes = {1, 8, 1000, 1024, 1031, 8192, 20001, 0, 77};
  const float factor = gradient_factor(1.7, 64);
  const AdamOptions options[] = {{0.1, 0.9, 0.95, 1e-8, 0.1}, {1e-3, 0.8, 0.999, 1e-6, 0.0}, {0.02, 0.9, 0.999, 1e-8, 0.05}};
  const std::vector<AdamScalars> scalars = {adamw_scalars(options[0], 1, factor), adamw_scalars(options[1], 100000, factor),
                                            adam_scalars(options[2], 7, factor)};
  const int steps[] = {1, 100000, 7};
  std::vector<AdamEntry> table;
  std::vector<State> states;
  std::vector<Uploaded> memory;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const FloatType gradient_type = kTypes[i % 3], parameter_type = kTypes[i / 3 % 3];
    const auto group = static_cast<uint32_t>((i + i / 3) % 3);
    states.push_back(random_state(sizes[i], static_cast<unsigned>(i)));
    restrict_to(gradient_type, states[i].gradient);
    memory.push_back(upload_state(states[i], gradient_type, parameter_type, i != 4, i));
    const Uploaded& u = memory[i];
    table.push_back({u.gradient, u.master, u.moment1, u.moment2, u.parameter, sizes[i], gradient_type, parameter_type, group, 0});
    reference_adam(states[i], options[group], steps[group], factor, group != 2);
  }
  kernels().adam(table, scalars);
  kernels().synchronize();
  for (size_t i = 0; i < sizes.size(); ++i) expect_state(memory[i], states[i], table[i].parameter_type);
}

TEST_P(Optimizer, Sgd) {
  const std::vector<size_t> sizes = {1, 8, 1000, 1024, 1031, 8192, 20001, 0, 77, 300};
  const float factor = gradient_factor(1.1, 8);
  const SgdOptions options[] = {{0.1, 0.9, 0.1}, {0.1, 0.9, 0.0}, {0.3, 0.0, 0.02}, {0.01, 0.5, 0.3}};
  const bool first[] = {true, false, false, false};
  std::vector<SgdScalars> scalars;
  for (size_t i = 0; i < 4; ++i) scalars.push_back(sgd_scalars(options[i], first[i], factor));
  std::vector<SgdEntry> table;
  std::vector<State> states;
  std::vector<Uploaded> memory;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const FloatType gradient_type = kTypes[i % 3], parameter_type = kTypes[i / 3 % 3];
    const auto group = static_cast<uint32_t>(i % 4);
    states.push_back(random_state(sizes[i], static_cast<unsigned>(50 + i)));
    restrict_to(gradient_type, states[i].gradient);
    memory.push_back(upload_state(states[i], gradient_type, parameter_type, i != 4, i));
    const Uploaded& u = memory[i];
    float* momentum = options[group].momentum != 0 ? u.moment1 : nullptr;
    table.push_back({u.gradient, u.master, momentum, u.parameter, sizes[i], gradient_type, parameter_type, group, 0});
    reference_sgd(states[i], options[group], first[group], factor);
  }
  kernels().sgd(table, scalars);
  kernels().synchronize();
  for (size_t i = 0; i < sizes.size(); ++i) expect_state(memory[i], states[i], table[i].parameter_type);
}

// Fused multiply-add rounds once; with two roundings this step would end elsewhere.
TEST_P(Optimizer, FusesWhatTheFormulaFuses) {
  const float x = 1 + 0x1p-12f;                      // x * x needs 25 bits
  State s{{1}, {-x}, {0}, {0}};
  s.gradient[0] = x;
  const Uploaded u = upload_state(s, f32, f32, false, 0);
  const SgdScalars scalars{1, 0, 0, x, 0};           // w = fma(x, x, w)
  const SgdEntry entry{u.gradient, u.master, nullptr, nullptr, 1, f32, f32, 0, 0};
  kernels().sgd({&entry, 1}, {&scalars, 1});
  kernels().synchronize();
  EXPECT_EQ(download(u.master, 1)[0], static_cast<float>(static_cast<double>(x) * x - x));
}

INSTANTIATE_TEST_SUITE_P(All, Optimizer, testing::ValuesIn(implementations()), name_of);

}  // namespace
}  // namespace fsdpctl::kernels
