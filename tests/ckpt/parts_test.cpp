#include "lib/ckpt/parts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/file.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/optimizer.h"
#include "tests/support/made_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

// "path: part fqn field", one line for each leaf.
std::vector<std::string> lines(const Parts& parts) {
  std::vector<std::string> out;
  for (const LeafInfo& leaf : parts.leaves) {
    std::string line = fmt::format("{}: {} {}", leaf.path, part_name(leaf.part), leaf.fqn);
    if (!leaf.field.empty()) line += fmt::format(" {}", leaf.field);
    while (line.back() == ' ') line.pop_back();
    out.push_back(line + (leaf.alias ? " alias" : ""));
  }
  return out;
}

Value adam_group(Value params) {
  return dict({{"lr", Value::real(0.1)}, {"betas", Value::integer(0)}, {"eps", Value::real(1e-8)}, {"amsgrad", Value::boolean(false)},
               {"foreach", Value()}, {"maximize", Value::boolean(false)}, {"capturable", Value::boolean(false)}, {"params", std::move(params)}});
}

TEST(Parts, NestedOptimizerKnownModelNameAndExtras) {
  MadeCheckpoint m;
  const Value tied = m.tensor("model.tok.weight", {4, 2});
  m.checkpoint.tree =
      dict({{"model", dict({{"tok.weight", tied}, {"head.weight", tied}, {"norm._extra_state", Value::bytes("x")}})},
            {"optim", dict({{"state", dict({{"tok.weight", dict({{"exp_avg", m.tensor("optim.state.tok.weight.exp_avg", {4, 2})},
                                                                 {"step", Value::integer(3)}})}})},
                            {"param_groups", list({adam_group(names({"tok.weight"}))})}})},
            {"sched", dict({{"last_epoch", Value::integer(2)}})},
            {"rng", dict({{"torch", m.tensor("rng.torch", {5056}, DType::uint8)}})}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_EQ(lines(parts), (std::vector<std::string>{
                              "model.tok.weight: model tok.weight", "model.head.weight: model head.weight alias",
                              "model.norm._extra_state: model norm._extra_state",
                              "optim.state.tok.weight.exp_avg: optimizer tok.weight exp_avg",
                              "optim.state.tok.weight.step: optimizer tok.weight step", "optim.param_groups.0.lr: optimizer",
                              "optim.param_groups.0.betas: optimizer", "optim.param_groups.0.eps: optimizer",
                              "optim.param_groups.0.amsgrad: optimizer", "optim.param_groups.0.foreach: optimizer",
                              "optim.param_groups.0.maximize: optimizer", "optim.param_groups.0.capturable: optimizer",
                              "optim.param_groups.0.params: optimizer",
                              "sched.last_epoch: extra", "rng.torch: extra"}));
  EXPECT_EQ(parts.model_path, "model");
  ASSERT_EQ(parts.optimizers.size(), 1u);
  const OptimizerInfo& o = parts.optimizers[0];
  EXPECT_EQ(o.path, "optim");
  EXPECT_EQ(o.class_guess, "AdamW");   // `foreach` before `maximize`: AdamW before 2.7
  EXPECT_TRUE(o.named);
  EXPECT_FALSE(o.integer_ids);
  EXPECT_EQ(o.fields, (std::vector<std::string_view>{"exp_avg", "step"}));
  EXPECT_EQ(o.parameters, (std::vector<std::string_view>{"tok.weight"}));
  ASSERT_EQ(o.groups.size(), 1u);
  EXPECT_EQ(o.groups[0].params, (std::vector<std::string_view>{"tok.weight"}));
  EXPECT_EQ(o.groups[0].fields.size(), 7u);
}

TEST(Parts, FlattenedOptimizerBesideAModelAtTheRoot) {
  MadeCheckpoint m;
  MadeEntries optimizer;
  for (const std::string name : {"blocks.0.w", "blocks.1.w", "emb"}) {
    optimizer.emplace_back("state." + name + ".exp_avg", m.tensor("optimizer.state." + name + ".exp_avg", {2}));
    optimizer.emplace_back("param_groups." + name + ".lr", Value::real(name == "emb" ? 0.5 : 0.25));
    optimizer.emplace_back("param_groups." + name + ".nesterov", Value::boolean(true));
  }
  m.checkpoint.tree = dict({{"blocks.0.w", m.tensor("blocks.0.w", {2})}, {"emb", m.tensor("emb", {2})}, {"optimizer", dict(optimizer)},
                            {"train_state", dict({{"step", m.tensor("train_state.step", {})}})},
                            {"epoch", Value::integer(1)}});
  const Parts parts = find_parts(m.checkpoint);
  const std::vector<std::string> got = lines(parts);
  ASSERT_EQ(got.size(), 13u);
  EXPECT_EQ(got[0], "blocks.0.w: model blocks.0.w");
  EXPECT_EQ(got[2], "optimizer.state.blocks.0.w.exp_avg: optimizer blocks.0.w exp_avg");
  EXPECT_EQ(got[3], "optimizer.param_groups.blocks.0.w.lr: optimizer");
  EXPECT_EQ(got[11], "train_state.step: extra");
  EXPECT_EQ(got[12], "epoch: extra");
  EXPECT_EQ(parts.model, &m.checkpoint.tree);
  ASSERT_EQ(parts.optimizers.size(), 1u);
  EXPECT_TRUE(parts.optimizers[0].flattened);
  ASSERT_EQ(parts.optimizers[0].groups.size(), 2u);   // two different lr
  EXPECT_EQ(parts.optimizers[0].groups[0].params, (std::vector<std::string_view>{"blocks.0.w", "blocks.1.w"}));
  EXPECT_EQ(parts.optimizers[0].groups[1].params, (std::vector<std::string_view>{"emb"}));
}

TEST(Parts, IdsBecomeNamesOnlyWhereNamesAreRecorded) {
  for (const bool recorded : {false, true}) {
    MadeCheckpoint m;
    MadeEntries group = {{"lr", Value::real(0.1)}, {"params", list({Value::integer(0), Value::integer(1)})}};
    if (recorded) group.emplace_back("param_names", names({"a.weight", "a.bias"}));
    std::vector<Entry> state;
    state.push_back({Value::integer(1), dict({{"momentum_buffer", m.tensor("state.1.momentum_buffer", {2})}})});
    m.checkpoint.tree = dict({{"state", Value::mapping(Kind::dict, state)}, {"param_groups", list({dict(group)})}});
    const Parts parts = find_parts(m.checkpoint);
    ASSERT_EQ(parts.optimizers.size(), 1u);
    EXPECT_EQ(parts.optimizers[0].path, "");
    EXPECT_TRUE(parts.optimizers[0].integer_ids);
    EXPECT_EQ(parts.optimizers[0].named, recorded);
    EXPECT_EQ(parts.leaves[0].fqn, recorded ? "a.bias" : "1");
    EXPECT_EQ(parts.leaves[0].field, "momentum_buffer");
    EXPECT_EQ(parts.leaves[0].path, "state.1.momentum_buffer");
    EXPECT_EQ(parts.optimizers[0].groups[0].params[1], recorded ? "a.bias" : "1");
    EXPECT_EQ(parts.model, nullptr);
  }
}

TEST(Parts, ComposerKeepsEverythingUnderState) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"state", dict({{"model", dict({{"module.w", m.tensor("state.model.module.w", {2})}})},
                                            {"optimizers", dict({{"AdamW", dict({{"state", dict({})}, {"param_groups", list({})}})}})}})},
                            {"rng", list({dict({{"torch", m.tensor("rng.0.torch", {5056}, DType::uint8)}})})}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_EQ(parts.model_path, "state.model");
  ASSERT_EQ(parts.optimizers.size(), 1u);
  EXPECT_EQ(parts.optimizers[0].path, "state.optimizers.AdamW");
  EXPECT_EQ(parts.optimizers[0].class_guess, "AdamW");
  EXPECT_EQ(parts.leaves[0].fqn, "module.w");
  EXPECT_EQ(parts.leaves.back().part, Part::extra);
}

TEST(Parts, LightningHasAListOfOptimizersAndADeeperStateDictThatIsNoModel) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"loops", dict({{"state_dict", dict({{"seen", m.tensor("loops.state_dict.seen", {1})}})}})},
                            {"state_dict", dict({{"net.w", m.tensor("state_dict.net.w", {2})}})},
                            {"optimizer_states", list({dict({{"state", dict({{"net.w", dict({{"sum", m.tensor("s", {2})}})}})},
                                                             {"param_groups", list({})}})})}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_EQ(parts.model_path, "state_dict");
  EXPECT_EQ(parts.optimizers.at(0).path, "optimizer_states.0");
  EXPECT_EQ(parts.leaves[0].part, Part::extra);
  EXPECT_EQ(parts.leaves.at(2).fqn, "net.w");
  EXPECT_EQ(parts.leaves.at(2).field, "sum");
}

TEST(Parts, WithoutAKnownNameContentDecides) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"generator", dict({{"w", m.tensor("generator.w", {2})}})}, {"epoch", Value::integer(3)}});
  EXPECT_EQ(find_parts(m.checkpoint).model_path, "generator");
  // Nothing but tensors: all of it is the model.
  m.checkpoint.tree = dict({{"encoder", dict({{"w", m.tensor("encoder.w", {2})}})}, {"decoder", dict({{"w", m.tensor("decoder.w", {2})}})}});
  EXPECT_EQ(find_parts(m.checkpoint).leaves.at(1).fqn, "decoder.w");
  m.checkpoint.tree = m.tensor("", {3});
  EXPECT_EQ(find_parts(m.checkpoint).leaves.at(0).part, Part::model);
  m.checkpoint.tree = Value::integer(7);
  EXPECT_EQ(find_parts(m.checkpoint).leaves.at(0).part, Part::extra);
}

TEST(Parts, RngStateAtTheRootIsNoWeight) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"w", m.tensor("w", {2})}, {"rng", m.tensor("rng", {5056}, DType::uint8)}, {"cuda_seed", m.tensor("cuda_seed", {16}, DType::uint8)},
                            {"bytes", m.tensor("bytes", {16}, DType::uint8)}});
  EXPECT_EQ(lines(find_parts(m.checkpoint)),
            (std::vector<std::string>{"w: model w", "rng: extra", "cuda_seed: extra", "bytes: model bytes"}));
}

TEST(Parts, WhatHoldsAnOptimizerIsNoModelWhateverItsName) {
  MadeCheckpoint m;
  const Value optimizer = dict({{"state", dict({{"w", dict({{"sum", m.tensor("state_dict.optim.state.w.sum", {2})}})}})}, {"param_groups", list({})}});
  m.checkpoint.tree = dict({{"state_dict", dict({{"model", dict({{"w", m.tensor("state_dict.model.w", {2})}})}, {"optim", optimizer}})}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_EQ(parts.model_path, "state_dict.model");
  EXPECT_EQ(parts.optimizers.at(0).path, "state_dict.optim");
}

TEST(Parts, WeightsAtTheRootBeatADeeperStateDict) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"w", m.tensor("w", {2})}, {"callbacks", dict({{"state_dict", dict({{"best", m.tensor("best", {2})}})}})}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_EQ(parts.model, &m.checkpoint.tree);
  EXPECT_EQ(parts.leaves.at(1).part, Part::extra);
}

TEST(Parts, AModelWithASubmoduleNamedStateIsNoOptimizer) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"state.w.weight", m.tensor("state.w.weight", {2})}, {"state.w.bias", m.tensor("state.w.bias", {2})}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_TRUE(parts.optimizers.empty());
  EXPECT_EQ(parts.leaves[0].fqn, "state.w.weight");
}

TEST(Parts, ClassesAreToldByTheirGroups) {
  const Value yes = Value::boolean(true), no = Value::boolean(false);
  struct Case {
    std::vector<std::string_view> hypers, fields;
    const Value* decoupled;
    std::string_view expected;
  };
  const Case cases[] = {
      {{"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach"}, {}, &yes, "AdamW"},
      {{"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach"}, {}, &no, "Adam"},
      {{"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable"}, {}, nullptr, "Adam"},
      {{"lr", "betas", "amsgrad", "maximize", "capturable", "eps", "weight_decay", "foreach"}, {}, nullptr, ""},   // any order
      {{"lr", "betas", "eps", "weight_decay", "amsgrad"}, {}, nullptr, ""},
      {{"lr", "momentum", "dampening", "weight_decay", "nesterov"}, {"momentum_buffer"}, nullptr, "SGD"},
      {{"lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps"}, {}, nullptr, "Muon"},
      {{"lr", "betas", "eps", "weight_decay", "momentum_decay"}, {}, &no, "NAdam"},
      {{"lr", "betas", "eps", "weight_decay"}, {"exp_avg", "exp_inf"}, nullptr, "Adamax"},
      {{"lr", "betas"}, {"exp_avg"}, nullptr, ""},
  };
  for (const Case& c : cases) {
    OptimizerInfo info;
    OptimizerGroup group;
    for (const std::string_view name : c.hypers) group.fields.emplace_back(name, &no);
    if (c.decoupled != nullptr) group.fields.emplace_back("decoupled_weight_decay", c.decoupled);
    info.groups.push_back(group);
    info.fields = c.fields;
    EXPECT_EQ(guess_class(info), c.expected);
  }
}

// tests/data/optimizers: what PyTorch 2.13.0 itself puts into groups and state.
TEST(Parts, EveryClassOfPyTorchIsToldAndItsLaterFieldsAreKnown) {
  const nlohmann::json json = nlohmann::json::parse(read_text(test_data("optimizers/optimizers.json"), 1 << 20));
  const std::set<std::string> later = {"maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"};
  ASSERT_GE(json.at("classes").size(), 15u);
  for (const auto& [name, saved] : json.at("classes").items()) {
    std::deque<Value> values;
    std::vector<std::pair<std::string_view, const Value*>> all;
    std::vector<std::string> expected, got;
    for (const auto& field : saved.at("group")) {
      const auto& text = field[0].get_ref<const std::string&>();
      values.push_back(field[1].is_boolean() ? Value::boolean(field[1].get<bool>()) : Value());
      all.emplace_back(text, &values.back());
      if (later.count(text) != 0) expected.push_back(text + " " + field[1].dump());
    }
    for (const auto& field : later_group_fields(name)) {
      got.push_back(std::string(field.first) + " " + value_to_json(field.second, JsonForm::shown));
    }
    EXPECT_EQ(got, expected) << name;
    OptimizerInfo info;
    info.groups.emplace_back().fields = all;
    for (const auto& field : saved.at("fields")) info.fields.push_back(field.get_ref<const std::string&>());
    EXPECT_EQ(guess_class(info), name);
  }
}

TEST(Parts, AHundredThousandParametersAreLinear) {
  MadeCheckpoint m;
  MadeEntries model, state, flat;
  std::vector<std::string> params;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = fmt::format("layers.{}.weight", i);
    model.emplace_back(name, m.tensor("model." + name, {1}));
    state.emplace_back(name, dict({{"exp_avg", m.tensor("optim.state." + name + ".exp_avg", {1})}}));
    flat.emplace_back("state." + name + ".sum", m.tensor("flat.state." + name + ".sum", {1}));
    flat.emplace_back("param_groups." + name + ".lr", Value::real(i));   // as many groups
    params.push_back(name);
  }
  m.checkpoint.tree = dict({{"model", dict(model)}, {"optim", dict({{"state", dict(state)}, {"param_groups", list({adam_group(names(params))})}})},
                            {"flat", dict(flat)}});
  const Parts parts = find_parts(m.checkpoint);
  EXPECT_EQ(parts.leaves.size(), 400'008u);
  EXPECT_EQ(parts.optimizers.at(1).groups.size(), 100'000u);
  // Tensors' names are the catalog's own.
  EXPECT_EQ(parts.leaves[0].path.data(), m.checkpoint.tensors[0].key.data());
}

}  // namespace
}  // namespace fsdpctl
