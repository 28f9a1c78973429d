// Everything that LightRFT's FSDPadaptOptimizer really did on 1, 2 and 4 ranks (tests/data/lightrft), done again by ours, fed
// the same gradients through shard handles.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "lib/train/fsdp_optimizer.h"
#include "tests/comm/ranks.h"
#include "tests/train/made_model.h"
#include "tests/train/trace.h"

namespace fsdpctl::train {
namespace {

using nlohmann::json;

struct Parameter {
  const char* name;
  int64_t size;
};
constexpr Parameter kParameters[] = {{"g0.t0", 24}, {"g0.t1", 20}, {"g1.t0", 5}};

// One run of the trace on one rank.
class Replay {
 public:
  Replay(const Trace& trace, const std::string& name, Communicator& ranks)
      : trace_(trace), name_(name), run_(trace.runs()[name]), ranks_(ranks), rank_(".r" + std::to_string(ranks.rank())) {
    dtype_ = run_["config"]["dtype"] == "torch.bfloat16" ? at::kBFloat16 : at::kHalf;
    adamw_ = run_["config"]["base"] == "adamw";
    for (const Parameter& p : kParameters) {
      model_.add(cut(p.name, {p.size}, ranks.rank(), ranks.size()), bits("init", p.name));
    }
    optimizer_.emplace(model_, ranks_, *device_, options());
  }

  // How many steps were compared: up to the one where LightRFT goes on with infinities and NaNs.
  int replay() {
    int compared = 0;
    for (const json& record : run_["trace"]) {
      const std::string step = "s" + std::to_string(record["step"].get<int>());
      SCOPED_TRACE(name_ + " " + step + rank_);
      const double scale = record["loss_scale_before"];
      EXPECT_EQ(optimizer_->loss_scale().const_data_ptr<float>()[0], scale);
      for (size_t i = 0; i < model_.size(); ++i) model_[i].grad = bits(step + ".grad", kParameters[i].name);
      const bool taken = optimizer_->step();
      if (!std::isfinite(number(record["global_scaled_norm"]))) {   // their own overflow test never found one
        EXPECT_FALSE(taken);
        return compared;
      }
      expect_same(record, taken, scale, step);
      ++compared;
    }
    expect_final_state();
    return compared;
  }

 private:
  at::Tensor bits(const std::string& what, const std::string& parameter) const {
    return tensor_of(dtype_, trace_.array<uint16_t>(name_ + "." + what + "." + parameter + rank_));
  }

  FSDPadaptOptions options() const {
    FSDPadaptOptions o;
    o.optimizer.kind = adamw_ ? OptimizerKind::adamw : OptimizerKind::sgd;
    o.optimizer.defaults = {0.1, 0.1, 0.9, 0.95, 1e-8, 0.9};
    o.optimizer.rules = {{"g0.*", {}, 0.1, {}, {}, {}, {}}, {"g1.*", {}, 0.0, {}, {}, {}, {}}};
    o.max_norm = run_["config"]["clip"];
    const json& scaler = run_["config"]["scaler"];
    if (!scaler.is_object()) return o;   // LightRFT's own for bfloat16
    GradScalerOptions s;
    s.initial_scale = scaler["initial_scale"];
    s.growth_factor = scaler["growth_factor"];
    s.backoff_factor = scaler["backoff_factor"];
    s.growth_interval = scaler["growth_interval"];
    s.min_scale = scaler["min_scale"];
    s.max_scale = scaler["max_scale"];
    s.hysteresis = scaler["hysteresis"];
    o.scaler = s;
    return o;
  }

  void expect_same(const json& record, bool taken, double scale, const std::string& step) {
    EXPECT_EQ(taken, record["returned"].get<bool>());
    EXPECT_EQ(optimizer_->loss_scale().const_data_ptr<float>()[0], record["loss_scale_after"].get<float>());
    EXPECT_EQ(optimizer_->scaler().scale(), record["grad_scaler"]["_scale"].get<float>());
    EXPECT_EQ(optimizer_->scaler().growth_step(), record["grad_scaler"]["_growth_step"].get<uint64_t>());
    EXPECT_EQ(optimizer_->scaler().hysteresis_step(), record["grad_scaler"]["_hysteresis_step"].get<uint64_t>());
    if (taken) {
      const double norm = number(record["global_scaled_norm"]);
      EXPECT_NEAR(optimizer_->last_grad_norm() * scale, norm, 1e-12 * norm);
    }
    for (size_t i = 0; i < model_.size(); ++i) {
      const std::string name = std::string(kParameters[i].name) + rank_;
      EXPECT_EQ(values_of<uint16_t>(model_[i].values), trace_.array<uint16_t>(name_ + "." + step + ".param." + name));
      const std::vector<float> expected = trace_.array<float>(name_ + "." + step + ".master." + name);
      const std::vector<float> master(optimizer_->state().master(i), optimizer_->state().master(i) + optimizer_->state().count(i));
      ASSERT_EQ(master.size(), expected.size());
      for (size_t k = 0; k < master.size(); ++k) {
        EXPECT_NEAR(master[k], expected[k], adamw_ ? 2.5e-7 : 0);   // their library's square root is not IEEE's
      }
    }
  }

  // Keys as theirs, and moments to the bit.
  void expect_final_state() {
    const StateDict dict = optimizer_->state_dict();
    std::vector<std::string> keys;
    for (const Entry& entry : dict.tree.entries()) keys.emplace_back(entry.key.text());
    std::vector<std::string> expected = run_["state_dict_key_order"];
    expected.emplace_back("meta");
    EXPECT_EQ(keys, expected);
    const Value& base = *dict.tree.find("base_optim_states");
    for (size_t g = 0; g < 2; ++g) {
      const std::vector<int64_t> theirs = run_["group_param_ids"][g];
      std::vector<int64_t> ours;
      for (const Value& id : base.find("param_groups")->items()[g].find("params")->items()) ours.push_back(id.as_integer());
      EXPECT_EQ(ours, theirs);
    }
    ASSERT_EQ(base.find("state")->entries().size(), 3u);
    for (const Entry& entry : base.find("state")->entries()) {
      const std::string id = key_text(entry.key);
      if (optimizer_->state().count(std::stoul(id)) == 0) continue;   // of empty shards theirs has no state
      std::set<std::string> fields;
      for (const Entry& field : entry.value.entries()) {
        const std::string name(field.key.text());
        fields.insert(name);
        const StateTensor& tensor = dict.tensors[field.value.as_tensor().index];
        const auto* data = static_cast<const float*>(tensor.data.get());
        EXPECT_EQ(std::vector<float>(data, data + tensor.count()),
                  trace_.array<float>(name_ + ".final.state" + id + "." + name + rank_)) << id << name;
      }
      EXPECT_EQ(fields, run_["base_state_entries"][id].get<std::set<std::string>>());
    }
  }

  const Trace& trace_;
  const std::string name_;
  const json& run_;
  Communicator& ranks_;
  const std::string rank_;
  at::ScalarType dtype_ = at::kHalf;
  bool adamw_ = false;
  MadeModel model_;
  const std::unique_ptr<Device> device_ = open_device("cpu");
  std::optional<FSDPadaptOptimizer> optimizer_;
};

class SourceTrace : public testing::TestWithParam<int> {};

TEST_P(SourceTrace, EveryRunStepByStep) {
  const Trace trace(GetParam());
  const std::map<std::string, int> steps = {{"adamw-bf16-asis", 6},     {"sgd-bf16-asis", 4},
                                            {"adamw-bf16-noclip", 4},   {"adamw-bf16-inf-asis", 2},
                                            {"adamw-bf16-nan-asis", 1}, {"adamw-fp16-dynamic-fixed", 14},
                                            {"sgd-fp16-dynamic-fixed", 9}};
  ASSERT_EQ(trace.runs().size(), steps.size());
  for (const auto& [name, expected] : steps) {
    const std::string run = name;
    const int count = expected;
    const RankResults results = run_ranks(GetParam(), [&](Communicator& ranks) {
      EXPECT_EQ(Replay(trace, run, ranks).replay(), count) << run;
    });
    for (const auto& finding : results.findings) EXPECT_FALSE(finding) << Error(*finding).what();
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSize, SourceTrace, testing::Values(1, 2, 4));

}  // namespace
}  // namespace fsdpctl::train
