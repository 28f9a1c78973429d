// state_dict() and load_state_dict() of FSDPadaptOptimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/error_of.h"
#include "tests/train/made_state_dict.h"

namespace fsdpctl::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
