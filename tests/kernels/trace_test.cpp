// The optimizer steps that LightRFT really took (tests/data/lightrft), taken again by the kernels on the same gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/scalars.h"
#include "tests/kernels/implementations.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl::kernels {
namespace {

using nlohmann::json;

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// trace.json and the arrays of trace.safetensors.
class Trace {
 public:
  explicit Trace(int world_size) {
    const std::string folder = test_data("lightrft/trace-w" + std::to_string(world_size));
    scalars = json::parse(read_all(folder + "/trace.json"));
    bytes_ = read_all(folder + "/trace.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, bytes_.data(), 8);
    arrays_ = json::parse(bytes_.substr(8, header));
    data_ = 8 + header;
  }
  template <class T>
  std::vector<T> array(const std::string& name) const {
    if (!arrays_.contains(name)) return {};   // an empty shard's state
    const size_t begin = arrays_[name]["data_offsets"][0], end = arrays_[name]["data_offsets"][1];
    std::vector<T> values((end - begin) / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes_.data() + data_ + begin, end - begin);
    return values;
  }
  json scalars;

 private:
  std::string bytes_;
  json arrays_;
  size_t data_ = 0;
};

double number(const json& hex) { return std::strtod(hex.get<std::string>().c_str(), nullptr); }

// One flat shard of one tensor on one rank.
struct Shard {
  size_t group;
  int state;          // index of its optimizer state
  std::string name;   // as array names end: "g0.t1.r0"
  std::string rank;
  float *master = nullptr, *moment1 = nullptr, *moment2 = nullptr;
  uint16_t* parameter = nullptr;
  size_t count = 0;
};

class TraceReplay : public KernelsTest {
 protected:
  void replay(int world_size) {
    const Trace trace(world_size);
    int runs = 0;
    for (const auto& [name, run] : trace.scalars["runs"].items()) {
      SCOPED_TRACE(name + ", world size " + std::to_string(world_size));
      replay_run(trace, name, run, world_size);
      ++runs;
    }
    EXPECT_EQ(runs, 7);
  }

 private:
  void replay_run(const Trace& trace, const std::string& run_name, const json& run, int world_size) {
    type_ = run["config"]["dtype"] == "torch.bfloat16" ? FloatType::bfloat16 : FloatType::float16;
    adamw_ = run["config"]["base"] == "adamw";
    start(trace, run_name, world_size);
    const bool as_is = run["config"]["sentinel"] == "as LightRFT";
    int taken = 0;
    for (const json& record : run["trace"]) {
      const std::string step = run_name + ".s" + std::to_string(record["step"].get<int>());
      const double scale = record["loss_scale_before"];
      const std::vector<GradientNorm> norms = gradient_norms(trace, step);
      const uint64_t nonfinite = norms[0].nonfinite + norms[1].nonfinite;
      if (nonfinite != 0 && as_is) return;   // LightRFT goes on with NaN everywhere: one of its defects
      ASSERT_EQ(nonfinite == 0, record["returned"].get<bool>()) << step;
      if (nonfinite == 0) {
        take_step(record, run["config"]["clip"], scale, norms, ++taken);
      }
      expect_step(trace, step);
    }
    expect_moments(trace, run_name);
  }

  void start(const Trace& trace, const std::string& run_name, int world_size) {
    shards_.clear();
    int state = 0;
    for (const auto& [group, tensors] : {std::pair<size_t, int>{0, 2}, {1, 1}}) {
      for (int t = 0; t < tensors; ++t, ++state) {
        for (int rank = 0; rank < world_size; ++rank) {
          Shard shard{group, state, "", ".r" + std::to_string(rank)};
          shard.name = ".g" + std::to_string(group) + ".t" + std::to_string(t) + shard.rank;
          const auto initial = trace.array<uint16_t>(run_name + ".init" + shard.name);
          shard.count = initial.size();
          shard.parameter = upload(initial);
          shard.master = uninitialised<float>(shard.count);
          shard.moment1 = upload(std::vector<float>(shard.count));
          shard.moment2 = upload(std::vector<float>(shard.count));
          const CastEntry widen{shard.parameter, shard.master, shard.count, type_, FloatType::float32};
          kernels().cast({&widen, 1}, {});
          shards_.push_back(shard);
        }
      }
    }
  }

  std::vector<GradientNorm> gradient_norms(const Trace& trace, const std::string& step) {
    std::vector<GradientEntry> table;
    gradients_.clear();
    for (const Shard& shard : shards_) {
      gradients_.push_back(upload(trace.array<uint16_t>(step + ".grad" + shard.name)));
      table.push_back({gradients_.back(), nullptr, shard.count, type_, static_cast<uint32_t>(shard.group)});
    }
    std::vector<GradientNorm> norms(2);
    kernels().unscale_norm(table, 1, norms);
    return norms;
  }

  void take_step(const json& record, double max_norm, double scale, const std::vector<GradientNorm>& norms, int step) {
    ExactSum all = norms[0].squares;
    add(all, norms[1].squares);
    const double norm = std::sqrt(value(all));
    for (size_t g = 0; g < 2; ++g) {
      const double expected = number(record["group_norms"][g]);
      EXPECT_NEAR(std::sqrt(value(norms[g].squares)), expected, 1e-12 * expected);
    }
    EXPECT_NEAR(norm, number(record["global_scaled_norm"]), 1e-12 * norm);
    const float factor = gradient_factor(clip_divisor(norm, scale, max_norm), scale);
    if (adamw_) {
      const AdamOptions decayed{0.1, 0.9, 0.95, 1e-8, 0.1}, plain{0.1, 0.9, 0.95, 1e-8, 0.0};
      const std::vector<AdamScalars> scalars = {adamw_scalars(decayed, static_cast<uint64_t>(step), factor),
                                                adamw_scalars(plain, static_cast<uint64_t>(step), factor)};
      std::vector<AdamEntry> table;
      for (size_t i = 0; i < shards_.size(); ++i) {
        const Shard& s = shards_[i];
        table.push_back({gradients_[i], s.master, s.moment1, s.moment2, s.parameter, s.count, type_, type_,
                         static_cast<uint32_t>(s.group), 0});
      }
      kernels().adam(table, scalars);
    } else {
      const std::vector<SgdScalars> scalars = {sgd_scalars({0.1, 0.9, 0.1}, step == 1, factor),
                                               sgd_scalars({0.1, 0.9, 0.0}, step == 1, factor)};
      std::vector<SgdEntry> table;
      for (size_t i = 0; i < shards_.size(); ++i) {
        const Shard& s = shards_[i];
        table.push_back({gradients_[i], s.master, s.moment1, s.parameter, s.count, type_, type_,
                         static_cast<uint32_t>(s.group), 0});
      }
      kernels().sgd(table, scalars);
    }
    kernels().synchronize();
  }

  void expect_step(const Trace& trace, const std::string& step) {
    for (const Shard& shard : shards_) {
      const auto master = download(shard.master, shard.count);
      const auto expected = trace.array<float>(step + ".master" + shard.name);
      ASSERT_EQ(master.size(), expected.size());
      if (adamw_) {   // PyTorch's vectorised square root is not IEEE's
        for (size_t i = 0; i < master.size(); ++i) EXPECT_NEAR(master[i], expected[i], 2.5e-7) << step << shard.name;
      } else {
        EXPECT_EQ(master, expected) << step << shard.name;
      }
      EXPECT_EQ(download(shard.parameter, shard.count), trace.array<uint16_t>(step + ".param" + shard.name)) << step << shard.name;
    }
  }

  void expect_moments(const Trace& trace, const std::string& run_name) {
    for (const Shard& shard : shards_) {
      const std::string name = run_name + ".final.state" + std::to_string(shard.state) + ".";
      const auto moment1 = trace.array<float>(name + (adamw_ ? "exp_avg" : "momentum_buffer") + shard.rank);
      EXPECT_EQ(download(shard.moment1, shard.count), moment1) << name;
      const auto moment2 = adamw_ ? trace.array<float>(name + "exp_avg_sq" + shard.rank) : std::vector<float>(shard.count);
      EXPECT_EQ(download(shard.moment2, shard.count), moment2) << name;
    }
  }

  std::vector<Shard> shards_;
  std::vector<const uint16_t*> gradients_;
  FloatType type_ = FloatType::bfloat16;
  bool adamw_ = false;
};

TEST_P(TraceReplay, OneRank) { replay(1); }
TEST_P(TraceReplay, TwoRanks) { replay(2); }
TEST_P(TraceReplay, FourRanks) { replay(4); }

INSTANTIATE_TEST_SUITE_P(All, TraceReplay, testing::ValuesIn(implementations()), name_of);

}  // namespace
}  // namespace fsdpctl::kernels
