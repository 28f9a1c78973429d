// state_dict() and load_state_dict() of FSDPadaptOptimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/support/error_of.h"
#include "tests/train/made_run.h"

namespace fsdpctl::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunOptions options_of(OptimizerKind kind, at::ScalarType dtype = at::kBFloat16, ShardPlacement placement = ShardPlacement::flat) {
  RunOptions options;
  options.optimizer = made_options(kind);
  options.dtype = dtype;
  options.placement = placement;
  return options;
}

// A dict's value at a path of keys; ids and groups as text.
const Value& at(const StateDict& dict, std::initializer_list<const char*> path) {
  const Value* value = &dict.tree;
  for (const char* key : path) {
    const Value* next = nullptr;
    if (value->is_mapping()) {
      for (const Entry& entry : value->entries()) {
        if (key_text(entry.key) == key) next = &entry.value;
      }
    } else {
      next = &value->items().at(std::stoul(key));
    }
    if (next == nullptr) throw std::runtime_error(std::string("no ") + key);
    value = next;
  }
  return *value;
}
const StateTensor& tensor_at(const StateDict& dict, std::initializer_list<const char*> path) {
  return dict.tensors[at(dict, path).as_tensor().index];
}
std::vector<float> floats(const StateTensor& tensor) {
  const auto* data = static_cast<const float*>(tensor.data.get());
  return std::vector<float>(data, data + tensor.count());
}

// A dict with the value at `path` replaced, or left out.
Value changed(const Value& value, std::span<const std::string> path, const std::optional<Value>& replacement) {
  if (path.empty()) return *replacement;
  if (value.is_sequence()) {
    std::vector<Value> items = value.items();
    Value& item = items.at(std::stoul(path[0]));
    item = changed(item, path.subspan(1), replacement);
    return Value::sequence(value.kind(), std::move(items));
  }
  std::vector<Entry> entries;
  for (const Entry& entry : value.entries()) {
    if (key_text(entry.key) != path[0]) entries.push_back(entry);
    else if (path.size() > 1 || replacement) entries.push_back({entry.key, changed(entry.value, path.subspan(1), replacement)});
  }
  return Value::mapping(value.kind(), std::move(entries));
}
StateDict with(const StateDict& dict, const std::vector<std::string>& path, const std::optional<Value>& replacement) {
  return {changed(dict.tree, path, replacement), dict.tensors};
}
StateDict without(const StateDict& dict, const std::vector<std::string>& path) { return with(dict, path, std::nullopt); }

TEST(StateDict, HasTheSourcesKeysAndMeta) {
  expect_all_well(run_ranks(2, [](Communicator& ranks) {
    MadeRun run(ranks, options_of(OptimizerKind::adamw, at::kBFloat16, ShardPlacement::per_parameter));
    EXPECT_TRUE(at(run.optimizer->state_dict(), {"base_optim_states", "state"}).entries().empty());
    run.step(0);
    const StateDict dict = run.optimizer->state_dict();
    std::vector<std::string> keys;
    for (const Entry& entry : dict.tree.entries()) keys.push_back(key_text(entry.key));
    EXPECT_THAT(keys, ElementsAre("grad_scaler", "base_optim_states", "flat_fp32_weights", "meta"));
    EXPECT_EQ(at(dict, {"grad_scaler", "_growth_step"}).as_integer(), 1);
    EXPECT_EQ(at(dict, {"meta", "world_size"}).as_integer(), 2);
    EXPECT_EQ(at(dict, {"meta", "rank"}).as_integer(), ranks.rank());
    EXPECT_EQ(at(dict, {"meta", "names", "0", "2"}).text(), "head.weight");
    EXPECT_EQ(at(dict, {"meta", "global_shapes", "0", "2"}).items().size(), 2u);
    EXPECT_EQ(at(dict, {"meta", "offsets", "0", "2"}).as_integer(), ranks.rank() * 6);
    EXPECT_EQ(at(dict, {"meta", "scaler", "growth_interval"}).as_integer(), 1000);
    EXPECT_EQ(at(dict, {"meta", "max_norm"}).as_real(), 1);
    EXPECT_EQ(floats(tensor_at(dict, {"base_optim_states", "state", "0", "step"})), std::vector<float>{1});
    EXPECT_EQ(floats(tensor_at(dict, {"flat_fp32_weights", "0", "1"})), run.master(1));
    EXPECT_EQ(floats(tensor_at(dict, {"base_optim_states", "state", "2", "exp_avg_sq"})), run.moment(2, 1));
    // Rows of 7 and of 5, 4 and 3 on the first rank.
    EXPECT_EQ(tensor_at(dict, {"flat_fp32_weights", "0", "0"}).shape, (std::vector<int64_t>{ranks.rank() == 0 ? 4 : 3, 3}));
  }));
}

TEST(StateDict, IsASnapshot) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun run(ranks);
    run.step(0);
    const StateDict dict = run.optimizer->state_dict();
    const std::vector<float> master = floats(tensor_at(dict, {"flat_fp32_weights", "0", "0"}));
    run.step(1);
    EXPECT_EQ(floats(tensor_at(dict, {"flat_fp32_weights", "0", "0"})), master);
    EXPECT_NE(run.master(0), master);
  }));
}

// Every kind of optimizer and of parameter: what is loaded goes on to the bit, also where the other had gone elsewhere.
TEST(StateDict, RoundTripOfEveryKind) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
      expect_all_well(run_ranks(2, [&](Communicator& ranks) {
        RunOptions options = options_of(kind, dtype);
        options.optimizer.schedule = {LrScheduleOptions::Kind::cosine, 2, 20, 1e-4};
        MadeRun first(ranks, options), second(ranks, options);
        first.set_gradients(0);
        first.model[1].grad = at::Tensor();   // no state for one
        first.optimizer->step();
        first.step(1);
        const StateDict dict = first.optimizer->state_dict();
        for (uint64_t step = 7; step < 10; ++step) second.step(step);
        second.optimizer->clip_grad_norm(second.model, 0.1);
        const LoadReport report = second.optimizer->load_state_dict(dict);
        EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
        EXPECT_EQ(second.everything(), first.everything());
        EXPECT_EQ(second.optimizer->schedule().taken(), 2u);
        EXPECT_EQ(second.optimizer->max_norm(), 1);
        for (uint64_t step = 2; step < 7; ++step) first.step(step), second.step(step);
        EXPECT_EQ(second.everything(), first.everything());
        EXPECT_EQ(second.optimizer->scaler().growth_step(), 7u);
      }));
    }
  }
}

TEST(StateDict, MomentsThatTheDictLacksAreDropped) {
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun run(ranks);
    const StateDict fresh = run.optimizer->state_dict();
    run.step(0);
    run.optimizer->load_state_dict(fresh);
    EXPECT_EQ(run.optimizer->state().step(0), 0u);
    EXPECT_TRUE(at(run.optimizer->state_dict(), {"base_optim_states", "state"}).entries().empty());
  }));
}

// The dicts of all ranks of a run of `steps` steps.
std::vector<StateDict> saved_by(int world, ShardPlacement placement, OptimizerKind kind, uint64_t steps = 3) {
  std::vector<StateDict> dicts(static_cast<size_t>(world));
  expect_all_well(run_ranks(world, [&](Communicator& ranks) {
    MadeRun run(ranks, options_of(kind, at::kBFloat16, placement));
    for (uint64_t step = 0; step < steps; ++step) run.step(step);
    dicts[static_cast<size_t>(ranks.rank())] = run.optimizer->state_dict();
  }));
  return dicts;
}
std::vector<const StateDict*> pointers(const std::vector<StateDict>& dicts) {
  std::vector<const StateDict*> all;
  for (const StateDict& dict : dicts) all.push_back(&dict);
  return all;
}

TEST(StateDict, AnyWorldSizeAndPlacementLoadsFromAnyOther) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
    for (int from = 1; from <= 4; ++from) {
      for (int to = 1; to <= 4; ++to) {
        for (const auto& [source, target] : {std::pair{ShardPlacement::flat, ShardPlacement::per_parameter},
                                             std::pair{ShardPlacement::per_parameter, ShardPlacement::flat}}) {
          const std::vector<StateDict> dicts = saved_by(from, source, kind);
          const ShardPlacement placement = target;
          const int world = from;
          expect_all_well(run_ranks(to, [&](Communicator& ranks) {
            SCOPED_TRACE(std::to_string(world) + " to " + std::to_string(ranks.size()));
            MadeRun loaded(ranks, options_of(kind, at::kBFloat16, placement)), trained(ranks, options_of(kind, at::kBFloat16, placement));
            for (uint64_t step = 0; step < 3; ++step) trained.step(step);
            loaded.optimizer->load_state_dict(pointers(dicts));
            EXPECT_EQ(loaded.everything(), trained.everything());
            loaded.step(3), trained.step(3);
            EXPECT_EQ(loaded.everything(), trained.everything());
          }));
        }
      }
    }
  }
}

// ---- refusals; each leaves everything as it was, on every rank

// What loading `dict` on the last of two ranks throws; the first one's is good.
Finding refusal(const std::function<StateDict(const StateDict&)>& tamper, const LoadOptions& load = {},
                const RunOptions& options = options_of(OptimizerKind::adamw)) {
  std::vector<Finding> findings(2);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun source(ranks, options_of(OptimizerKind::adamw)), target(ranks, options);
    source.step(0);
    target.step(5);
    const auto before = target.everything();
    const float scale = target.optimizer->scaler().scale();
    const uint64_t growth = target.optimizer->scaler().growth_step();
    const StateDict good = source.optimizer->state_dict();
    const StateDict dict = ranks.rank() == 1 ? tamper(good) : good;
    findings[static_cast<size_t>(ranks.rank())] = error_of([&] { target.optimizer->load_state_dict(dict, load); });
    EXPECT_EQ(target.everything(), before);
    EXPECT_EQ(target.optimizer->scaler().scale(), scale);
    EXPECT_EQ(target.optimizer->scaler().growth_step(), growth);
    EXPECT_EQ(target.optimizer->schedule().taken(), 1u);
    target.step(6);
  }));
  EXPECT_EQ(findings[0].what, findings[1].what);
  EXPECT_EQ(findings[0].where.rank, 1);
  return findings[1];
}

TEST(StateDict, WhatIsMissingIsNamed) {
  const std::vector<std::vector<std::string>> paths = {
      {"grad_scaler"}, {"base_optim_states"}, {"flat_fp32_weights"}, {"grad_scaler", "_scale"}, {"grad_scaler", "_hysteresis_step"},
      {"base_optim_states", "state"}, {"base_optim_states", "param_groups"}, {"meta", "version"}, {"meta", "names"},
      {"meta", "offsets"}, {"meta", "global_shapes"}, {"meta", "scaler"}, {"meta", "scaler", "hysteresis"}, {"meta", "lr_schedule"}};
  for (const auto& path : paths) {
    const Finding finding = refusal([&](const StateDict& dict) { return without(dict, path); });
    EXPECT_EQ(finding.code, Exit::damaged) << finding.what;
    EXPECT_THAT(finding.where.key, HasSubstr(path.back()));
  }
}

TEST(StateDict, WhatIsMalformedIsNamed) {
  const auto code_of = [](const std::vector<std::string>& path, const std::optional<Value>& value) {
    return refusal([&](const StateDict& dict) { return with(dict, path, value); }).code;
  };
  const std::string base = "base_optim_states";
  EXPECT_EQ(code_of({"grad_scaler", "_scale"}, Value::string("big")), Exit::damaged);
  EXPECT_EQ(code_of({"grad_scaler", "_scale"}, Value::real(-1)), Exit::damaged);
  EXPECT_EQ(code_of({"grad_scaler", "_growth_step"}, Value::integer(-3)), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "step"}, Value::real(0.5)), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "step"}, Value::real(0)), Exit::damaged);       // with moments
  EXPECT_EQ(code_of({base, "state", "0", "step"}, Value::string("7")), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "exp_avg"}, std::nullopt), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0", "exp_avg"}, Value::tensor({4'000'000, false, false})), Exit::damaged);
  EXPECT_EQ(code_of({base, "state", "0"}, Value::integer(1)), Exit::damaged);
  EXPECT_EQ(code_of({base, "param_groups", "0", "params", "1"}, Value::integer(7)), Exit::damaged);
  EXPECT_EQ(code_of({base, "param_groups", "0", "betas"}, Value::real(1)), Exit::damaged);
  EXPECT_EQ(code_of({base, "param_groups", "0", "lr"}, Value::string("1")), Exit::damaged);
  EXPECT_EQ(code_of({"flat_fp32_weights", "0"}, Value::integer(1)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "names", "0", "1"}, Value::string("layer.weight")), Exit::damaged);   // twice
  EXPECT_EQ(code_of({"meta", "offsets", "0", "1"}, Value::integer(1000)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "offsets", "0", "1"}, Value::integer(-1)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "global_shapes", "0", "1", "0"}, Value::integer(int64_t{1} << 62)), Exit::refused);   // another shape
  EXPECT_EQ(code_of({"meta", "global_shapes", "0", "0", "0"}, Value::integer(int64_t{1} << 62)), Exit::damaged);
  EXPECT_EQ(code_of({"meta", "version"}, Value::integer(2)), Exit::unsupported);
}

TEST(StateDict, OptionsThatThisOptimizerLacksAreRefused) {
  for (const char* option : {"amsgrad", "maximize"}) {
    const Finding finding = refusal([&](const StateDict& dict) {
      return with(dict, {"base_optim_states", "param_groups", "0", option}, Value::boolean(true));
    });
    EXPECT_EQ(finding.code, Exit::refused);
    EXPECT_THAT(finding.where.key, HasSubstr(option));
  }
  const Finding finding = refusal([&](const StateDict& dict) {
    return with(dict, {"base_optim_states", "param_groups", "0", "decoupled_weight_decay"}, Value::boolean(false));
  });
  EXPECT_EQ(finding.found, "Adam");
}

TEST(StateDict, AShardOfOneElementIsNotSpreadOverAnother) {
  const Finding finding = refusal([](const StateDict& dict) {
    StateDict bad = dict;
    for (const auto& path : {std::vector<std::string>{"flat_fp32_weights", "0", "0"}, {"base_optim_states", "state", "0", "exp_avg"},
                             {"base_optim_states", "state", "0", "exp_avg_sq"}}) {
      const Value one = bad.add(make_state_tensor(DType::float32, {1}, std::vector<float>{5}));
      bad.tree = changed(bad.tree, path, one);
    }
    return bad;
  });
  EXPECT_EQ(finding.code, Exit::refused);
  EXPECT_EQ(finding.where.key, "layer.weight");
}

TEST(StateDict, AnotherRanksDictIsRefused) {
  const std::vector<StateDict> saved = saved_by(2, ShardPlacement::flat, OptimizerKind::adamw);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(saved[static_cast<size_t>(1 - ranks.rank())]); });
    EXPECT_EQ(finding.what, "saved optimizer state lacks elements that this rank holds");
    EXPECT_EQ(finding.where.rank, 0);
    run.optimizer->load_state_dict(saved[static_cast<size_t>(ranks.rank())]);
  }));
}

TEST(StateDict, RanksAtDifferentStepsAreRefused) {
  const std::vector<StateDict> early = saved_by(2, ShardPlacement::flat, OptimizerKind::adamw, 2);
  const std::vector<StateDict> late = saved_by(2, ShardPlacement::flat, OptimizerKind::adamw, 3);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const auto before = run.everything();
    const Finding finding =
        error_of([&] { run.optimizer->load_state_dict(ranks.rank() == 0 ? early[0] : late[1]); });
    EXPECT_EQ(finding.what, "ranks were given optimizer states of different steps");
    EXPECT_EQ(run.everything(), before);
    const std::vector<const StateDict*> mixed = {&early[0], &late[1]};
    EXPECT_EQ(error_of([&] { run.optimizer->load_state_dict(mixed); }).what, "shards of a parameter are of different steps");
  }));
}

TEST(StateDict, AnotherOptimizersIsRefused) {
  const std::vector<StateDict> sgd = saved_by(1, ShardPlacement::flat, OptimizerKind::sgd);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(sgd[0]); });
    EXPECT_EQ(finding.code, Exit::refused);
  }));
}

TEST(StateDict, AnotherScalerIsRefusedUnlessTold) {
  const std::vector<StateDict> saved = saved_by(1, ShardPlacement::flat, OptimizerKind::adamw);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    RunOptions options = options_of(OptimizerKind::adamw);
    options.optimizer.scaler = default_scaler(DType::bfloat16);
    options.optimizer.scaler->growth_interval = 7;
    MadeRun run(ranks, options);
    const auto before = run.everything();
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(saved[0]); });
    EXPECT_EQ(finding.code, Exit::refused);
    EXPECT_THAT(finding.found, HasSubstr("growth_interval: 7, 1000"));
    EXPECT_EQ(run.everything(), before);
    LoadOptions told;
    told.other_scaler = true;
    run.optimizer->load_state_dict(saved[0], told);
    EXPECT_EQ(run.optimizer->scaler().growth_step(), 3u);
    EXPECT_EQ(run.optimizer->scaler().options().growth_interval, 7u);
  }));
}

TEST(StateDict, WithoutMetaNamesMustBeGivenAndShapesEqual) {
  const std::vector<StateDict> saved = saved_by(2, ShardPlacement::per_parameter, OptimizerKind::adamw);
  const std::vector<std::string> names = {"layer.weight", "layer.bias", "head.weight"};
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    const StateDict dict = without(saved[static_cast<size_t>(ranks.rank())], {"meta"});
    MadeRun same(ranks, options_of(OptimizerKind::adamw, at::kBFloat16, ShardPlacement::per_parameter));
    MadeRun trained(ranks, options_of(OptimizerKind::adamw, at::kBFloat16, ShardPlacement::per_parameter)), flat(ranks);
    for (uint64_t step = 0; step < 3; ++step) trained.step(step);
    const auto refused = [&](MadeRun& run, const std::vector<std::string>& given) {
      LoadOptions options;
      options.names = given;
      const Finding finding = error_of([&] { run.optimizer->load_state_dict(dict, options); });
      EXPECT_EQ(finding.code, Exit::refused);
      return finding.what;
    };
    EXPECT_THAT(refused(same, {}), HasSubstr("names were not given"));
    EXPECT_THAT(refused(same, {"layer.weight", "layer.bias"}), HasSubstr("names were not given"));
    EXPECT_THAT(refused(same, {"layer.bias", "layer.weight", "head.weight"}), HasSubstr("shape"));
    EXPECT_THAT(refused(same, {"layer.weight", "layer.bias", "tail.weight"}), HasSubstr("lacks parameters"));
    EXPECT_THAT(refused(flat, names), HasSubstr("shape"));
    LoadOptions options;
    options.names = names;
    same.optimizer->load_state_dict(dict, options);
    EXPECT_EQ(same.everything(), trained.everything());
    const std::vector<const StateDict*> two = {&dict, &dict};
    EXPECT_THAT(error_of([&] { same.optimizer->load_state_dict(two, options); }).what, HasSubstr("do not say which elements"));
  }));
}

// The source keeps no state for shards that are empty, as the last one's here.
TEST(StateDict, EmptyShardsMayLackState) {
  const std::vector<StateDict> saved = saved_by(5, ShardPlacement::flat, OptimizerKind::adamw);
  const StateDict last = without(saved[4], {"base_optim_states", "state", "1"});
  for (const bool meta : {false, true}) {
    expect_all_well(run_ranks(5, [&](Communicator& ranks) {
      MadeRun run(ranks), trained(ranks);
      for (uint64_t step = 0; step < 3; ++step) trained.step(step);
      EXPECT_EQ(run.optimizer->state().count(1) == 0, ranks.rank() == 4);
      const StateDict& mine = ranks.rank() == 4 ? last : saved[static_cast<size_t>(ranks.rank())];
      LoadOptions options;
      options.names = {"layer.weight", "layer.bias", "head.weight"};
      run.optimizer->load_state_dict(meta ? mine : without(mine, {"meta"}), options);
      EXPECT_EQ(run.master(0), trained.master(0));
      EXPECT_EQ(run.moment(1, 1), trained.moment(1, 1));
      run.step(3), trained.step(3);
      EXPECT_EQ(run.master(2), trained.master(2));
    }));
  }
  std::vector<const StateDict*> all = pointers(saved);
  all[4] = &last;
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    run.optimizer->load_state_dict(all);
    EXPECT_EQ(run.optimizer->state().step(1), 3u);
  }));
}

TEST(StateDict, StrictIsAChoice) {
  const std::vector<StateDict> saved = saved_by(1, ShardPlacement::flat, OptimizerKind::adamw);
  const StateDict other = with(saved[0], {"meta", "names", "0", "2"}, Value::string("tail.weight"));
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks), trained(ranks);
    for (uint64_t step = 0; step < 3; ++step) trained.step(step);
    run.step(8);
    const std::vector<float> head = run.master(2);
    const Finding finding = error_of([&] { run.optimizer->load_state_dict(other); });
    EXPECT_EQ(finding.code, Exit::refused);
    EXPECT_EQ(finding.found, "head.weight");
    LoadOptions lax;
    lax.strict = false;
    const LoadReport report = run.optimizer->load_state_dict(other, lax);
    EXPECT_THAT(report.missing, ElementsAre("head.weight"));
    EXPECT_THAT(report.unexpected, ElementsAre("tail.weight"));
    EXPECT_EQ(run.master(2), head);
    EXPECT_EQ(run.master(0), trained.master(0));
  }));
}

TEST(StateDict, HyperparametersAreTheDictsUnlessTold) {
  const std::vector<StateDict> saved = saved_by(1, ShardPlacement::flat, OptimizerKind::adamw);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    RunOptions options = options_of(OptimizerKind::adamw);
    options.optimizer.optimizer.defaults.lr = 0.5;
    options.optimizer.max_norm = 3;
    MadeRun run(ranks, options);
    LoadOptions ours;
    ours.hyperparameters = false;
    run.optimizer->load_state_dict(saved[0], ours);
    EXPECT_EQ(run.optimizer->param_groups()[0].initial_lr, 0.5);
    EXPECT_EQ(run.optimizer->max_norm(), 3);
    run.optimizer->load_state_dict(saved[0]);
    EXPECT_EQ(run.optimizer->param_groups()[0].initial_lr, 0.01);
    EXPECT_EQ(run.optimizer->max_norm(), 1);
  }));
}

TEST(StateDict, GroupsMayBeCutDifferentlyWhereTheirOptionsAreKept) {
  const std::vector<StateDict> one_group = saved_by(1, ShardPlacement::flat, OptimizerKind::adamw);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    RunOptions options = options_of(OptimizerKind::adamw);
    options.optimizer.optimizer.rules = {{"head.*", 0.5, {}, {}, {}, {}, {}}};
    MadeRun two_groups(ranks, options), trained(ranks);
    for (uint64_t step = 0; step < 3; ++step) trained.step(step);
    EXPECT_EQ(two_groups.optimizer->parameter(0).fqn, "head.weight");
    two_groups.optimizer->load_state_dict(one_group[0]);
    const OptimizerState& state = two_groups.optimizer->state();
    EXPECT_EQ(std::vector<float>(state.master(0), state.master(0) + 10), trained.master(2));
    EXPECT_EQ(two_groups.optimizer->param_groups()[0].initial_lr, 0.01);
    const StateDict dict = two_groups.optimizer->state_dict();
    EXPECT_EQ(error_of([&] { trained.optimizer->load_state_dict(with(dict, {"base_optim_states", "param_groups", "0", "lr"}, Value::real(0.25))); }).code,
              Exit::refused);
    LoadOptions ours;
    ours.hyperparameters = false;
    trained.optimizer->load_state_dict(dict, ours);
  }));
}

TEST(StateDict, MastersMayHave16Bits) {
  const std::vector<StateDict> saved = saved_by(1, ShardPlacement::flat, OptimizerKind::adamw);
  StateDict half = saved[0];
  const Value ones = half.add(make_state_tensor(DType::bfloat16, {7}, std::vector<uint16_t>(7, 0x3F80)));
  half.tree = changed(half.tree, std::vector<std::string>{"flat_fp32_weights", "0", "1"}, ones);
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    MadeRun run(ranks);
    run.optimizer->load_state_dict(half);
    EXPECT_EQ(run.master(1), std::vector<float>(7, 1));
  }));
}

}  // namespace
}  // namespace fsdpctl::train
