// The loss scaler: every sequence that LightRFT's own went through, and what its options may be.
#include "lib/train/grad_scaler.h"

#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/train/trace.h"

namespace fsdpctl::train {
namespace {

GradScalerOptions options_of(const nlohmann::json& arguments) {
  GradScalerOptions options;
  options.dtype = DType::bfloat16;   // LightRFT's default
  for (const auto& [name, value] : arguments.items()) {
    if (name == "initial_scale") options.initial_scale = value;
    else if (name == "growth_factor") options.growth_factor = value;
    else if (name == "backoff_factor") options.backoff_factor = value;
    else if (name == "growth_interval") options.growth_interval = value;
    else if (name == "min_scale") options.min_scale = value;
    else if (name == "max_scale") options.max_scale = value;
    else if (name == "hysteresis") options.hysteresis = value;
    else if (name == "dtype") options.dtype = DType::float16;
    else ADD_FAILURE() << "the trace has an option that this test does not know: " << name;
  }
  return options;
}

TEST(GradScaler, EverySequenceOfTheSource) {
  const Trace trace(1);
  int updates = 0;
  for (const auto& [name, sequence] : trace.scaler_sequences().items()) {
    SCOPED_TRACE(name);
    DynamicGradScaler scaler(options_of(sequence["args"]));
    for (size_t i = 0; i < sequence["states"].size(); ++i) {
      const auto& state = sequence["states"][i];
      EXPECT_EQ(scaler.scale(), state["_scale"].get<float>()) << i;
      EXPECT_EQ(scaler.growth_step(), state["_growth_step"].get<uint64_t>()) << i;
      EXPECT_EQ(scaler.hysteresis_step(), state["_hysteresis_step"].get<uint64_t>()) << i;
      EXPECT_EQ(scaler.inverse_scale(), static_cast<float>(number(state["inv_scale"]))) << i;
      if (i < sequence["overflow"].size()) scaler.update(sequence["overflow"][i].get<int>() != 0), ++updates;
    }
  }
  EXPECT_EQ(updates, 50);
}

TEST(GradScaler, Defaults) {
  const GradScalerOptions half = default_scaler(DType::float16);
  EXPECT_EQ(half.initial_scale, 65536);
  EXPECT_EQ(half.growth_factor, 2);
  EXPECT_EQ(half.backoff_factor, 0.5);
  EXPECT_EQ(half.growth_interval, 1000u);
  EXPECT_EQ(half.min_scale, 1);
  EXPECT_EQ(half.max_scale, 1 << 24);
  EXPECT_EQ(half.hysteresis, 2u);
  DynamicGradScaler off(default_scaler(DType::bfloat16));
  for (int i = 0; i < 5; ++i) off.update(true);
  EXPECT_EQ(off.scale(), 1);
  EXPECT_EQ(off.hysteresis_step(), 5u);
  for (int i = 0; i < 1000; ++i) off.update(false);
  EXPECT_EQ(off.scale(), 1);
  EXPECT_EQ(off.hysteresis_step(), 0u);
}

TEST(GradScaler, ImpossibleOptionsAreNamed) {
  const auto key_of = [](auto change) {
    GradScalerOptions options;
    change(options);
    return error_of([&] { DynamicGradScaler scaler(options); }).where.key;
  };
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.initial_scale = 0; }), "initial_scale");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.initial_scale = 1e39; }), "initial_scale");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.initial_scale = 0.5; }), "initial_scale");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.max_scale = 1024; }), "initial_scale");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.growth_factor = 1; }), "growth_factor");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.backoff_factor = 1; }), "backoff_factor");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.backoff_factor = 0; }), "backoff_factor");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.growth_interval = 0; }), "growth_interval");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.min_scale = -1; }), "min_scale");
  EXPECT_EQ(key_of([](GradScalerOptions& o) { o.max_scale = -1; }), "max_scale");
}

TEST(GradScaler, TheScaleStaysAFloat) {
  GradScalerOptions options;
  options.min_scale = options.max_scale = 0;
  options.growth_interval = options.hysteresis = 1;
  DynamicGradScaler up(options), down(options);
  for (int i = 0; i < 400; ++i) up.update(false), down.update(true);
  EXPECT_EQ(up.scale(), 0x1p127f);
  EXPECT_GT(down.scale(), 0);
}

TEST(GradScaler, RestoredStateIsChecked) {
  DynamicGradScaler scaler(default_scaler(DType::float16));
  scaler.restore(4096, 7, 3);
  EXPECT_EQ(scaler.scale(), 4096);
  EXPECT_EQ(scaler.growth_step(), 7u);
  EXPECT_EQ(scaler.hysteresis_step(), 3u);
  EXPECT_EQ(error_of([&] { scaler.restore(0, 0, 0); }).where.key, "_scale");
  EXPECT_EQ(error_of([&] { scaler.restore(0.1, 0, 0); }).where.key, "_scale");
  EXPECT_EQ(error_of([&] { scaler.restore(1, -1, 0); }).where.key, "_growth_step");
  EXPECT_EQ(error_of([&] { scaler.restore(1, 0, -1); }).where.key, "_hysteresis_step");
  EXPECT_EQ(scaler.scale(), 4096);
}

TEST(GradScaler, DifferencesNameEachOption) {
  GradScalerOptions other;
  other.growth_interval = 2000;
  other.hysteresis = 1;
  EXPECT_EQ(differences(GradScalerOptions{}, other),
            (std::vector<std::string>{"growth_interval: 1000, 2000", "hysteresis: 2, 1"}));
}

}  // namespace
}  // namespace fsdpctl::train
