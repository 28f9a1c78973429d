// Defects of the source in its state dicts, its loading and its offload; see defects_of_steps_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <sstream>

#include "tests/source_emulation/lightrft.h"
#include "tests/support/error_of.h"
#include "tests/support/temp_dir.h"
#include "tests/train/made_run.h"
#include "tests/train/trace.h"

namespace fsdpctl::train {
namespace {

std::vector<float> floats(const StateTensor& tensor) {
  const auto* data = static_cast<const float*>(tensor.data.get());
  return std::vector<float>(data, data + tensor.count());
}

// One parameter of the source's, in one group.
struct SourceRun {
  explicit SourceRun(std::vector<float> values) : parameter{source::numbers(std::move(values)), false, nullptr}, groups{{&parameter}} {}
  void step(source::FSDPadaptOptimizer& optimizer, float gradient) {
    parameter.gradient = source::numbers(std::vector<float>(parameter.values->size(), gradient));
    optimizer.step();
  }
  source::Parameter parameter;
  source::Groups groups;
};
const source::Sgd kSgd{0.5, 0, {0}};

// ---- A3

struct ConfigurationOutcome {
  bool saved = false, other_refused = false;
};
bool configuration_is_kept(const ConfigurationOutcome& o) { return o.saved && o.other_refused; }

// That a backoff does not refill the hysteresis is Megatron's rule and kept: GradScaler.EverySequenceOfTheSource.
TEST(Defects, Defect_A3_TheScalersConfigurationIsNotSaved) {
  const std::vector<std::string> recorded = Trace(1).runs()["adamw-fp16-dynamic-fixed"]["state_dict_keys"]["grad_scaler"];
  EXPECT_FALSE(configuration_is_kept({std::find(recorded.begin(), recorded.end(), "growth_interval") != recorded.end(), false}));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    RunOptions other;
    other.optimizer.scaler = default_scaler(DType::bfloat16);
    other.optimizer.scaler->growth_interval = 5;
    MadeRun first(ranks), second(ranks, other);
    const StateDict dict = first.optimizer->state_dict();
    const bool saved = dict.tree.find("meta")->find("scaler")->find("growth_interval") != nullptr;
    const bool refused = error_of([&] { second.optimizer->load_state_dict(dict); }).code == Exit::refused;
    EXPECT_TRUE(configuration_is_kept({saved, refused}));
  }));
}

// ---- A7

struct LoadOutcome {
  bool layout_is_known = false;       // world size, shapes and offsets are in the dict
  bool one_element_refused = false;   // instead of being spread over the shard
  bool scaler_is_as_before = false;   // after a load that failed
  bool says_why = false;
};
bool loads_are_safe(const LoadOutcome& o) {
  return o.layout_is_known && o.one_element_refused && o.scaler_is_as_before && o.says_why;
}

TEST(Defects, Defect_A7_LoadingIsNeitherCheckedNorAtomic) {
  SourceRun theirs({1, 2, 3});
  source::FSDPadaptOptimizer optimizer(theirs.groups, kSgd);
  source::StateDict one = optimizer.state_dict();
  one.flat_fp32_weights = {{source::numbers({7})}};
  optimizer.load_state_dict(one);
  LoadOutcome outcome;
  outcome.one_element_refused = *theirs.parameter.values != std::vector<float>{7, 7, 7};
  source::StateDict bad = optimizer.state_dict();
  bad.grad_scaler["_scale"] = 99;
  bad.flat_fp32_weights = {};
  try {
    optimizer.load_state_dict(bad);
  } catch (const source::PythonError& e) {
    outcome.says_why = std::string(e.what()) != "AssertionError";
  }
  outcome.scaler_is_as_before = optimizer.loss_scale() != 99;
  EXPECT_FALSE(outcome.one_element_refused || outcome.scaler_is_as_before || outcome.says_why);
  EXPECT_FALSE(loads_are_safe(outcome));

  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun ours(ranks);
    StateDict dict = ours.optimizer->state_dict();
    LoadOutcome mine;
    const Value& meta = *dict.tree.find("meta");
    mine.layout_is_known = meta.find("world_size") && meta.find("global_shapes") && meta.find("offsets");
    // Masters of one element; a scale that would be seen.
    std::vector<Entry> entries = dict.tree.entries();
    for (Entry& entry : entries) {
      if (entry.key.text() == "grad_scaler") {
        std::vector<Entry> scaler = entry.value.entries();
        scaler[0].value = Value::real(99);
        entry.value = Value::mapping(Kind::dict, scaler);
      } else if (entry.key.text() == "flat_fp32_weights") {
        std::vector<Value> masters = entry.value.entries()[0].value.items();
        masters[0] = dict.add(make_state_tensor(DType::float32, {1}, std::vector<float>{7}));
        entry.value = Value::mapping(Kind::dict, {{Value::integer(0), Value::sequence(Kind::list, masters)}});
      }
    }
    dict.tree = Value::mapping(Kind::dict, entries);
    const auto before = ours.everything();
    const Finding finding = error_of([&] { ours.optimizer->load_state_dict(dict); });
    mine.one_element_refused = ours.everything() == before;
    mine.scaler_is_as_before = ours.optimizer->scaler().scale() == 1;
    mine.says_why = finding.where.key == "layer.weight" && !finding.saw_text().empty();
    EXPECT_TRUE(loads_are_safe(mine));
  }));
}

// ---- A8

bool keeps_what_was_loaded(float loaded, float after_a_step) { return loaded == after_a_step; }

TEST(Defects, Defect_A8_StaleMastersOverwriteAModelThatWasLoadedAlone) {
  SourceRun theirs({0, 0, 0});
  source::FSDPadaptOptimizer optimizer(theirs.groups, {0, 0, {0}});   // a rate of 0: a step changes nothing
  *theirs.parameter.values = {7, 7, 7};
  theirs.step(optimizer, 1);
  EXPECT_FALSE(keeps_what_was_loaded(7, (*theirs.parameter.values)[0]));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    RunOptions options;
    options.optimizer = made_options(OptimizerKind::sgd);
    options.optimizer.optimizer.defaults = {0, 0, 0, 0, 0, 0};
    MadeRun ours(ranks, options);
    ours.model[0].values.fill_(7);
    ours.optimizer->refresh_masters_from_model();
    ours.step(0);
    EXPECT_TRUE(keeps_what_was_loaded(7, ours.master(0)[0]));
    EXPECT_TRUE(keeps_what_was_loaded(7, ours.model[0].values.to(at::kFloat).const_data_ptr<float>()[0]));
  }));
}

// ---- A12, A13

struct InterfaceOutcome {
  bool offload_threw = false;
};
bool is_one_interface(const InterfaceOutcome& o) { return !o.offload_threw; }

TEST(Defects, Defect_A12_TheWrappedOptimizerCannotBeOffloaded) {
  SourceRun theirs({1});
  source::FSDPadaptOptimizer optimizer(theirs.groups, kSgd);
  InterfaceOutcome outcome;
  try {
    source::offload_fsdp_optimizer(optimizer);
  } catch (const source::PythonError&) {
    outcome.offload_threw = true;
  }
  EXPECT_FALSE(is_one_interface(outcome));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeRun ours(ranks);
    ours.step(0);
    InterfaceOutcome mine;
    try {
      offload_fsdp_optimizer(*ours.optimizer).wait();
    } catch (const Error&) {
      mine.offload_threw = true;
    }
    EXPECT_TRUE(is_one_interface(mine));
  }));
}

struct OffloadOutcome {
  bool early_read_noticed = false, masters_can_move = false, step_stayed = false, nothing_inserted = false;
  bool device_argument_counts = false;
  uint64_t bytes_reported = 0;
};
bool offload_is_safe(const OffloadOutcome& o) {
  return o.early_read_noticed && o.masters_can_move && o.step_stayed && o.nothing_inserted && o.device_argument_counts &&
         o.bytes_reported > 0;
}

TEST(Defects, Defect_A13_OffloadIsNotWaitedForAndMovesAndInsertsTheWrongThings) {
  source::PlainOptimizer theirs{{"a", "b"}, {"a"}, {}, false};
  source::offload_fsdp_optimizer(theirs);
  OffloadOutcome outcome;
  outcome.early_read_noticed = !theirs.copy_pending;
  outcome.step_stayed = theirs.on_host.count("a.step") == 0;
  outcome.nothing_inserted = theirs.has_state.size() == 1;
  outcome.device_argument_counts = source::load_fsdp_optimizer(theirs, 5, 1) == 5;
  EXPECT_FALSE(outcome.early_read_noticed || outcome.step_stayed || outcome.nothing_inserted || outcome.device_argument_counts);
  EXPECT_FALSE(offload_is_safe(outcome));

  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    RunOptions options;
    options.optimizer = made_options();
    options.device = {1, std::chrono::milliseconds(5), true};
    MadeRun ours(ranks, options);
    ours.set_gradients(0);
    ours.model[1].grad = at::Tensor();   // no state for that one
    ours.optimizer->step();
    OffloadOutcome mine;
    StateMove out = offload_fsdp_optimizer(*ours.optimizer, {true});
    mine.early_read_noticed = error_of([&] { ours.optimizer->state_dict(); }).code == Exit::usage;
    out.wait();
    mine.bytes_reported = out.bytes();
    mine.masters_can_move = ours.device().use(Place::device).bytes == 0;
    mine.step_stayed = ours.optimizer->state().step(0) == 1;   // a number here: it is never in a pool
    mine.nothing_inserted = ours.optimizer->state_dict().tree.find("base_optim_states")->find("state")->entries().size() == 2;
    mine.device_argument_counts =
        error_of([&] { (void)load_fsdp_optimizer(*ours.optimizer, "cuda:9999"); }).code == Exit::unsupported;
    EXPECT_TRUE(offload_is_safe(mine));
  }));
}

// ---- A16

bool is_a_snapshot(const std::vector<float>& at_the_time, const std::vector<float>& later) { return at_the_time == later; }

TEST(Defects, Defect_A16_TheStateDictChangesWhileTrainingGoesOn) {
  SourceRun theirs({1, 2});
  source::FSDPadaptOptimizer optimizer(theirs.groups, kSgd);
  const source::StateDict live = optimizer.state_dict();
  const std::vector<float> then = *live.flat_fp32_weights[0][0];
  theirs.step(optimizer, 1);
  EXPECT_FALSE(is_a_snapshot(then, *live.flat_fp32_weights[0][0]));
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    expect_all_well(run_ranks(1, [&](Communicator& ranks) {
      RunOptions options;
      options.dtype = dtype;
      MadeRun ours(ranks, options);
      ours.step(0);
      const StateDict dict = ours.optimizer->state_dict();
      std::vector<std::vector<float>> before;
      for (const StateTensor& tensor : dict.tensors) before.push_back(floats(tensor));
      ours.step(1);
      for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(is_a_snapshot(before[i], floats(dict.tensors[i])));
    }));
  }
}

// ---- A17

TEST(Defects, Defect_A17_MachinesHaveEightGpus) {
  const auto is_the_ranks_own = [](int local_rank, int device) { return local_rank == device; };
  EXPECT_FALSE(is_the_ranks_own(11, source::get_current_device(11)));
  EXPECT_TRUE(is_the_ranks_own(11, device_of_rank("cuda", 11).ordinal));
}

// ---- C1

struct ReshardOutcome {
  bool loaded = false, same_bits = false;
};
bool reshards(const ReshardOutcome& o) { return o.loaded && o.same_bits; }

TEST(Defects, Defect_C1_StateCannotBeLoadedOnAnotherNumberOfRanks) {
  SourceRun one({1, 2, 3, 4}), half({1, 2});   // the same weights on one rank, and the first of two
  source::FSDPadaptOptimizer saved(one.groups, kSgd), loading(half.groups, kSgd);
  ReshardOutcome outcome{true, false};
  try {
    loading.load_state_dict(saved.state_dict());
  } catch (const source::PythonError&) {
    outcome.loaded = false;
  }
  EXPECT_FALSE(reshards(outcome));

  for (const auto& [from, to] : {std::pair{1, 2}, {2, 1}, {2, 3}, {3, 2}, {3, 4}, {4, 3}, {4, 1}}) {
    std::vector<StateDict> dicts(static_cast<size_t>(from));
    std::vector<float> expected;
    std::mutex mutex;
    expect_all_well(run_ranks(from, [&](Communicator& ranks) {
      MadeRun run(ranks);
      for (uint64_t step = 0; step < 3; ++step) run.step(step);
      dicts[static_cast<size_t>(ranks.rank())] = run.optimizer->state_dict();
    }));
    std::vector<const StateDict*> all;
    for (const StateDict& dict : dicts) all.push_back(&dict);
    expect_all_well(run_ranks(to, [&](Communicator& ranks) {
      MadeRun loaded(ranks), trained(ranks);
      for (uint64_t step = 0; step < 3; ++step) trained.step(step);
      loaded.optimizer->load_state_dict(all);
      EXPECT_TRUE(reshards({true, loaded.everything() == trained.everything()}));
    }));
  }
}

// ---- C5

bool saves_and_loads(bool threw, bool same) { return !threw && same; }

TEST(Defects, Defect_C5_SavingWorksForOneKindOfOptimizerOnly) {
  bool threw = false;
  try {
    source::internevo_save_optimizer("FSDPadaptOptimizer");
  } catch (const source::PythonError&) {
    threw = true;
  }
  EXPECT_FALSE(saves_and_loads(threw, false));
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::adam, OptimizerKind::sgd}) {
    for (const double momentum : {0.0, 0.9}) {
      expect_all_well(run_ranks(2, [&](Communicator& ranks) {
        RunOptions options;
        options.optimizer = made_options(kind);
        options.optimizer.optimizer.defaults.momentum = momentum;
        MadeRun saved(ranks, options), loaded(ranks, options);
        saved.step(0);
        loaded.optimizer->load_state_dict(saved.optimizer->state_dict());
        saved.step(1), loaded.step(1);
        EXPECT_TRUE(saves_and_loads(false, saved.master(0) == loaded.master(0) && saved.master(2) == loaded.master(2)));
      }));
    }
  }
}

// ---- C6

bool strict_false_counts(bool threw) { return !threw; }

TEST(Defects, Defect_C6_StrictFalseIsLost) {
  bool threw = false;
  try {
    source::internevo_load_shard({"a", "b"}, {"a", "c"}, false);
  } catch (const source::PythonError&) {
    threw = true;
  }
  EXPECT_FALSE(strict_false_counts(threw));
  expect_all_well(run_ranks(1, [](Communicator& ranks) {
    MadeModel few, many;
    few.add(cut("a", {3}, 0, 1), made_tensor(at::kBFloat16, {1, 2, 3}));
    for (const char* name : {"a", "c"}) many.add(cut(name, {3}, 0, 1), made_tensor(at::kBFloat16, {0, 0, 0}));
    const auto device = open_device("cpu");
    FSDPadaptOptimizer saved(few, ranks, *device, {}), loading(many, ranks, *device, {});
    LoadOptions lax;
    lax.strict = false;
    bool ours_threw = false;
    try {
      const LoadReport report = loading.load_state_dict(saved.state_dict(), lax);
      EXPECT_EQ(report.missing, std::vector<std::string>{"c"});
    } catch (const Error&) {
      ours_threw = true;
    }
    EXPECT_TRUE(strict_false_counts(ours_threw));
    EXPECT_EQ(loading.state().master(0)[2], 3);
  }));
}

// ---- C8

struct FileOutcome {
  bool names_device = false, runs_code = false;
};
bool is_safe_to_load_anywhere(const FileOutcome& o) { return !o.names_device && !o.runs_code; }

// Whether some value below is of a kind that says where something lay, or how Python would make it.
FileOutcome look_into(const Value& value) {
  FileOutcome found{value.is(Kind::device), value.is(Kind::global) || value.is(Kind::object)};
  const auto add = [&](const Value& below) {
    const FileOutcome more = look_into(below);
    found = {found.names_device || more.names_device, found.runs_code || more.runs_code};
  };
  if (value.is_sequence()) {
    for (const Value& item : value.items()) add(item);
  }
  if (value.is_mapping()) {
    for (const Entry& entry : value.entries()) add(entry.key), add(entry.value);
  }
  return found;
}

TEST(Defects, Defect_C8_AnotherRanksFileNamesItsDeviceAndRunsCode) {
  std::ifstream file(test_data("lightrft/mp-w2/_rank1"), std::ios::binary);
  std::stringstream recorded;
  recorded << file.rdbuf();
  const auto contains = [&](const char* text) { return recorded.str().find(text) != std::string::npos; };
  // A pickle: classes and functions by name, that loading calls with a device mesh.
  EXPECT_FALSE(is_safe_to_load_anywhere({contains("device_type"), contains("_rebuild_tensor_v2")}));
  std::vector<StateDict> dicts(2);
  expect_all_well(run_ranks(2, [&](Communicator& ranks) {
    MadeRun ours(ranks);
    ours.step(0);
    dicts[static_cast<size_t>(ranks.rank())] = ours.optimizer->state_dict();
  }));
  EXPECT_TRUE(is_safe_to_load_anywhere(look_into(dicts[1].tree)));
  expect_all_well(run_ranks(1, [&](Communicator& ranks) {
    const std::vector<const StateDict*> both = {&dicts[1], &dicts[0]};
    MadeRun ours(ranks);
    ours.optimizer->load_state_dict(both);
    EXPECT_EQ(ours.optimizer->state().step(0), 1u);
  }));
}

}  // namespace
}  // namespace fsdpctl::train
