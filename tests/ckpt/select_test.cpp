#include "lib/ckpt/select.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "lib/ckpt/renumber.h"
#include "tests/support/made_checkpoint.h"

namespace fsdpctl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> leaves(const Checkpoint& checkpoint) {
  struct List : TreeVisitor {
    std::vector<std::string> paths;
    void leaf(std::string_view path, const Value&) override { paths.emplace_back(path); }
  } visitor;
  walk_tree(checkpoint.tree, visitor);
  return visitor.paths;
}

std::vector<std::string> texts(const std::vector<Change>& changes) {
  std::vector<std::string> out;
  for (const Change& c : changes) out.push_back(fmt::format("{} {}: {}", c.kind, c.key, c.detail));
  return out;
}

const Value* at(const Value& tree, std::initializer_list<std::string_view> path) {
  const Value* v = &tree;
  for (const std::string_view element : path) {
    if (v == nullptr) return nullptr;
    v = v->is_sequence() ? &v->items().at(static_cast<size_t>(element[0] - '0')) : v->find(element);
  }
  return v;
}

std::vector<std::string> strings(const Value* list) {
  std::vector<std::string> out;
  for (const Value& v : list->items()) out.push_back(key_text(v));
  return out;
}

Exit code_of(const std::function<void()>& action, std::string* what = nullptr) {
  try {
    action();
  } catch (const Error& e) {
    if (what != nullptr) *what = e.what();
    return e.code();
  }
  return Exit::ok;
}

// Model of a (tied to b), c and an integer buffer n; AdamW as 2.4 saves it; scheduler and RNG state.
struct Training {
  MadeCheckpoint m;
  explicit Training(const std::string& prefix = "") {
    const Value a = m.tensor("", {4, 2});
    Value model = Value::mapping(Kind::ordered_dict, {});
    const auto name = [&](const char* base) { return prefix + base; };
    model = dict({{name("l.a.weight"), a}, {name("l.b.weight"), a}, {name("l.c"), m.shard("", {6}, 2)},
                  {name("n"), m.tensor("", {}, DType::int64)}});
    const Value group = dict({{"lr", Value::real(0.5)}, {"betas", Value::integer(1)}, {"eps", Value::real(1)}, {"weight_decay", Value::real(0)},
                              {"amsgrad", Value::boolean(false)}, {"foreach", Value()}, {"maximize", Value::boolean(false)},
                              {"capturable", Value::boolean(false)}, {"differentiable", Value::boolean(false)}, {"fused", Value()},
                              {"params", names({name("l.a.weight"), name("l.c")})}});
    m.checkpoint.tree =
        dict({{"model", model},
              {"optim", dict({{"state", dict({{name("l.a.weight"), dict({{"exp_avg", m.tensor("", {4, 2})}})},
                                              {name("l.c"), dict({{"exp_avg", m.tensor("", {6})}})}})},
                              {"param_groups", list({group})}})},
              {"sched", dict({{"last_epoch", Value::integer(2)}, {"gamma", Value::real(0.5)}})},
              {"rng", dict({{"torch", m.tensor("", {5056}, DType::uint8)}})}});
    FindingSink sink;
    m.checkpoint.finish(sink);
  }
};

TEST(Glob, StarsMatchDotsAndClassesWork) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("layers.*.bias", "layers.0.attn.bias"));
  EXPECT_FALSE(glob_match("layers.*.bias", "layers.0.bias.x"));
  EXPECT_TRUE(glob_match("l?yers.[0-3].w", "layers.2.w"));
  EXPECT_FALSE(glob_match("layers.[0-3].w", "layers.4.w"));
  EXPECT_TRUE(glob_match("layers.[!0-3].w", "layers.4.w"));
  EXPECT_TRUE(glob_match("a[", "a["));          // no closing bracket: itself
  EXPECT_TRUE(glob_match("[]]", "]"));
  EXPECT_TRUE(glob_match("**a**b", "xxaxxaxxb"));
  EXPECT_FALSE(glob_match("", "a"));
  // Would take forever with naive backtracking.
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*a*a*a*b", std::string(20000, 'a')));
}

TEST(Select, NothingAskedChangesNothing) {
  Training t;
  std::vector<Change> changes;
  const Checkpoint out = select(t.m.checkpoint, {}, changes);
  EXPECT_TRUE(changes.empty());
  EXPECT_TRUE(equal(out.tree, t.m.checkpoint.tree));
  EXPECT_EQ(out.pieces.size(), t.m.checkpoint.pieces.size());
}

TEST(Select, ModelPartAloneKeepsOnlyItsTensors) {
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.optimizer = s.extra = false;
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_THAT(leaves(out), ElementsAre("model.l.a.weight", "model.l.b.weight", "model.l.c", "model.n"));
  EXPECT_THAT(texts(changes), ElementsAre("dropped optim: state of 2 parameters left out by --part", "dropped sched: left out by --part",
                                          "dropped rng: left out by --part"));
  ASSERT_EQ(out.tensors.size(), 3u);
  EXPECT_EQ(out.tensors[1].key, "model.l.c");
  ASSERT_EQ(out.aliases.size(), 1u);
  EXPECT_EQ(out.aliases[0].key, "model.l.b.weight");
  ASSERT_EQ(out.pieces_of(1).size(), 2u);
  EXPECT_EQ(out.pieces_of(1)[1].rank, 1);
}

TEST(Select, OptimizerPartAlone) {
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.model = s.extra = false;
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_EQ(out.tensors.size(), 2u);
  EXPECT_THAT(texts(changes), Contains("dropped model: 4 names left out by --part"));
}

TEST(Select, ADroppedTensorTakesItsStateAndItsPlaceInTheGroupsAlong) {
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.drop = {"l.a*", "rng", "sched.gam*"};
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_THAT(leaves(out), ElementsAre("model.l.b.weight", "model.l.c", "model.n", "optim.state.l.c.exp_avg", "optim.param_groups.0.lr",
                                       "optim.param_groups.0.betas", "optim.param_groups.0.eps", "optim.param_groups.0.weight_decay",
                                       "optim.param_groups.0.amsgrad", "optim.param_groups.0.foreach", "optim.param_groups.0.maximize",
                                       "optim.param_groups.0.capturable", "optim.param_groups.0.differentiable",
                                       "optim.param_groups.0.fused", "optim.param_groups.0.params", "sched.last_epoch"));
  EXPECT_THAT(strings(at(out.tree, {"optim", "param_groups", "0", "params"})), ElementsAre("l.c"));
  EXPECT_THAT(texts(changes), ElementsAre("dropped model.l.a.weight: --drop 'l.a*'", "dropped optim.state.l.a.weight: state of l.a.weight",
                                          "dropped optim.param_groups.0.params: l.a.weight", "dropped sched.gamma: --drop 'sched.gam*'",
                                          "dropped rng: --drop 'rng'"));
  EXPECT_EQ(out.tensors[0].key, "model.l.b.weight");   // the tied tensor lives on under its other name
}

TEST(Select, DropsByPathWhatNoFqnMatches) {
  for (const char* glob : {"optim", "optim*", "optim.*"}) {
    Training t;
    std::vector<Change> changes;
    Selection s;
    s.drop = {glob};
    const Checkpoint out = select(t.m.checkpoint, s, changes);
    EXPECT_EQ(at(out.tree, {"optim"}), nullptr) << glob;
    EXPECT_NE(at(out.tree, {"model", "l.a.weight"}), nullptr) << glob;
    EXPECT_NE(at(out.tree, {"sched"}), nullptr) << glob;
    EXPECT_THAT(texts(changes), ElementsAre(fmt::format("dropped optim: state of 2 parameters, --drop '{}'", glob)));
  }
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.drop = {"model.l.b*"};
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_EQ(at(out.tree, {"model", "l.b.weight"}), nullptr);
  EXPECT_THAT(texts(changes), ElementsAre("dropped model.l.b.weight: --drop 'model.l.b*'"));
}

TEST(Select, AGlobForFqnsIsNotTakenForPaths) {
  Training t("optim.");   // FQNs that begin as the optimizer's path does
  std::vector<Change> changes;
  Selection s;
  s.drop = {"optim.l.b*"};
  EXPECT_NE(at(select(t.m.checkpoint, s, changes).tree, {"optim"}), nullptr);
  s.drop = {"o*b.weight"};
  EXPECT_NE(at(select(t.m.checkpoint, s, changes).tree, {"optim"}), nullptr);
  s.drop = {"optim.l*"};
  EXPECT_NE(at(select(t.m.checkpoint, s, changes).tree, {"optim"}), nullptr);
}

TEST(Select, RenamesEverywhere) {
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.rename = {{"^l\\.([ab])", "layer_\\1"}, {"layer_", "h."}};
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_NE(at(out.tree, {"model", "h.a.weight"}), nullptr);
  EXPECT_NE(at(out.tree, {"optim", "state", "h.a.weight", "exp_avg"}), nullptr);
  EXPECT_THAT(strings(at(out.tree, {"optim", "param_groups", "0", "params"})), ElementsAre("h.a.weight", "l.c"));
  EXPECT_THAT(texts(changes), ElementsAre("renamed l.a.weight: h.a.weight", "renamed l.b.weight: h.b.weight"));
}

TEST(Select, RefusesCollisionsEmptyNamesAndRulesThatMatchNothing) {
  Training t;
  std::vector<Change> changes;
  std::string what;
  Selection s;
  s.rename = {{"[ab]\\.weight", "w"}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }, &what), Exit::refused);
  EXPECT_THAT(what, HasSubstr("l.a.weight and l.b.weight"));
  s.rename = {{"^.*$", ""}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }), Exit::refused);
  s.rename = {{"nowhere", "x"}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }, &what), Exit::refused);
  EXPECT_THAT(what, HasSubstr("nowhere"));
  s.rename = {{"(", "x"}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }), Exit::usage);
  s.rename = {{"a", "\\3"}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }), Exit::usage);
  // What is dropped neither collides nor counts as a match.
  s.drop = {"l.b.weight"};
  s.rename = {{"[ab]\\.weight", "w"}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }), Exit::ok);
  s.rename = {{"l.b", "x"}};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }), Exit::refused);
  s = {};
  s.drop = {"l.*", "nothing*"};
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }, &what), Exit::refused);
  EXPECT_THAT(what, HasSubstr("nothing*"));
  s.drop = {"*"};
  EXPECT_EQ(code_of([&] {
              Selection model = s;
              model.optimizer = false;
              select(t.m.checkpoint, model, changes);
            }),
            Exit::refused);
}

TEST(Select, StripsWrappersOnlyAsWholeElements) {
  Training t("module._orig_mod.");
  std::vector<Change> changes;
  Selection s;
  s.strip_wrappers = true;
  Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_NE(at(out.tree, {"model", "l.a.weight"}), nullptr);
  EXPECT_NE(at(out.tree, {"optim", "state", "l.c"}), nullptr);

  // A real submodule of that name, and elements that only look alike.
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"module.w", m.tensor("", {1})}, {"net.module.w", m.tensor("", {1})}, {"net._orig_mod_x.w", m.tensor("", {1})},
                            {"a._fsdp_wrapped_module.b._checkpoint_wrapped_module.w", m.tensor("", {1})}, {"_orig_mod", m.tensor("", {1})}});
  FindingSink sink;
  m.checkpoint.finish(sink);
  out = select(m.checkpoint, s, changes);
  EXPECT_THAT(leaves(out), ElementsAre("module.w", "net.module.w", "net._orig_mod_x.w", "a.b.w", "_orig_mod"));
}

TEST(Select, StateDictMetadataFollowsItsModules) {
  MadeCheckpoint m;
  Value model = Value::mapping(Kind::ordered_dict, {{Value::string("module.a.b.w"), m.tensor("", {2})}});
  model.mutable_node<MappingNode>().attributes =
      dict({{"_metadata", dict({{"", Value::integer(0)}, {"module", Value::integer(1)}, {"module.a", Value::integer(2)}, {"module.a.b", Value::integer(3)}})}});
  m.checkpoint.tree = model;
  FindingSink sink;
  m.checkpoint.finish(sink);
  std::vector<Change> changes;
  Selection s;
  s.strip_wrappers = true;
  const Checkpoint out = select(m.checkpoint, s, changes);
  const Value* metadata = out.tree.node<MappingNode>().attributes.find("_metadata");
  ASSERT_NE(metadata, nullptr);
  std::vector<std::string> keys;
  for (const Entry& e : metadata->entries()) keys.push_back(key_text(e.key));
  EXPECT_THAT(keys, ElementsAre("", "a", "a.b"));
  EXPECT_EQ(metadata->find("a.b")->as_integer(), 3);
}

TEST(Select, CastsFloatingModelTensorsOnly) {
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.cast = DType::bfloat16;
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_EQ(out.tensors[0].dtype, DType::bfloat16);
  EXPECT_EQ(out.pieces_of(0)[0].stored, DType::float32);
  EXPECT_EQ(out.tensors[2].dtype, DType::int64);
  EXPECT_EQ(out.tensors[3].dtype, DType::float32);   // exp_avg
  EXPECT_THAT(texts(changes), ElementsAre("cast model.l.a.weight: float32 -> bfloat16", "cast model.l.c: float32 -> bfloat16"));
  s.cast = DType::int8;
  EXPECT_EQ(code_of([&] { select(t.m.checkpoint, s, changes); }), Exit::usage);
}

TEST(Select, FillsGroupFieldsThatNewerReleasesWant) {
  Training t;
  std::vector<Change> changes;
  Selection s;
  s.fill_missing = true;
  const Checkpoint out = select(t.m.checkpoint, s, changes);
  EXPECT_THAT(texts(changes), ElementsAre("filled optim.param_groups.0.decoupled_weight_decay: True (default of AdamW)"));
  const Value* group = at(out.tree, {"optim", "param_groups", "0"});
  EXPECT_TRUE(group->find("decoupled_weight_decay")->as_boolean());
  EXPECT_EQ(key_text(group->entries().back().key), "params");
}

TEST(Select, FlattenedKeysFollowNamesAndAreFilled) {
  MadeCheckpoint m;
  MadeEntries optim;
  for (const std::string name : {"m.a", "m.b"}) {
    optim.emplace_back("state." + name + ".momentum_buffer", m.tensor("", {2}));
    for (const char* hyper : {"lr", "momentum", "dampening", "nesterov", "maximize", "differentiable"}) {
      optim.emplace_back("param_groups." + name + "." + hyper, Value::integer(0));
    }
  }
  m.checkpoint.tree = dict({{"m.a", m.tensor("", {2})}, {"m.b", m.tensor("", {2})}, {"optim", dict(optim)}});
  FindingSink sink;
  m.checkpoint.finish(sink);
  std::vector<Change> changes;
  Selection s;
  s.drop = {"m.b"};
  s.rename = {{"^m\\.", "n."}};
  s.fill_missing = true;
  const Checkpoint out = select(m.checkpoint, s, changes);
  std::vector<std::string> keys;
  for (const Entry& e : out.tree.find("optim")->entries()) keys.push_back(key_text(e.key));
  EXPECT_THAT(keys, ElementsAre("state.n.a.momentum_buffer", "param_groups.n.a.lr", "param_groups.n.a.momentum", "param_groups.n.a.dampening",
                                "param_groups.n.a.nesterov", "param_groups.n.a.maximize", "param_groups.n.a.differentiable",
                                "param_groups.n.a.foreach", "param_groups.n.a.fused"));
  EXPECT_THAT(texts(changes), Contains("filled optim.param_groups.n.a.foreach: None (default of SGD)"));
  EXPECT_THAT(texts(changes), Contains("dropped optim.state.m.b.momentum_buffer: state of m.b"));
}

TEST(Select, FillsWhatNewerReleasesKeepOfSchedulers) {
  const Value old = dict({{"base_lrs", list({Value::real(0.1)})}, {"last_epoch", Value::integer(3)},
                          {"_get_lr_called_within_step", Value::boolean(false)}, {"_last_lr", list({Value::real(0.1)})}});
  Value recent = dict(MadeEntries{{"last_epoch", Value::integer(3)}, {"_get_lr_called_within_step", Value::boolean(false)},
                                  {"_is_initial", Value::boolean(true)}});
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"model", dict({{"a", m.tensor("", {2})}})},
                            {"sched", old},
                            {"recent", recent},
                            {"sequence", dict({{"last_epoch", Value::integer(3)}, {"_schedulers", list({old, recent})}})},
                            {"flat._get_lr_called_within_step", Value::boolean(false)},
                            {"flat.last_epoch", Value::integer(1)},
                            {"plateau", dict({{"last_epoch", Value::integer(3)}, {"best", Value::real(1)}})}});
  FindingSink sink;
  m.checkpoint.finish(sink);
  std::vector<Change> changes;
  Selection s;
  EXPECT_TRUE(equal(select(m.checkpoint, s, changes).tree, m.checkpoint.tree));
  s.fill_missing = true;
  const Checkpoint out = select(m.checkpoint, s, changes);
  EXPECT_THAT(texts(changes), ElementsAre("filled sched._is_initial: False (default of LRScheduler)",
                                          "filled sequence._schedulers.0._is_initial: False (default of LRScheduler)",
                                          "filled flat._is_initial: False (default of LRScheduler)"));
  EXPECT_FALSE(at(out.tree, {"sched", "_is_initial"})->as_boolean());
  EXPECT_FALSE(at(out.tree, {"sequence", "_schedulers", "0", "_is_initial"})->as_boolean());
  EXPECT_FALSE(out.tree.find("flat._is_initial")->as_boolean());
  EXPECT_TRUE(equal(*out.tree.find("recent"), recent));
  EXPECT_TRUE(equal(*out.tree.find("plateau"), *m.checkpoint.tree.find("plateau")));
}

struct WithIds {
  MadeCheckpoint m;
  explicit WithIds(bool recorded) {
    MadeEntries group = {{"lr", Value::real(0.1)}, {"params", list({Value::integer(0), Value::integer(1)})}};
    if (recorded) group.emplace_back("param_names", names({"a", "b"}));
    std::vector<Entry> state;
    for (int id = 0; id < 2; ++id) state.push_back({Value::integer(id), dict({{"momentum_buffer", m.tensor("", {2})}})});
    m.checkpoint.tree = dict({{"model", dict({{"a", m.tensor("", {2})}, {"b", m.tensor("", {2})}})},
                              {"optim", dict({{"state", Value::mapping(Kind::dict, state)}, {"param_groups", list({dict(group)})}})}});
    FindingSink sink;
    m.checkpoint.finish(sink);
  }
};

TEST(Select, IdsFollowRecordedNamesAndRefuseDropsWithoutThem) {
  Selection s;
  s.drop = {"a"};
  s.rename = {{"b", "c"}};
  std::vector<Change> changes;
  const Checkpoint out = select(WithIds(true).m.checkpoint, s, changes);
  EXPECT_THAT(strings(at(out.tree, {"optim", "param_groups", "0", "params"})), ElementsAre("1"));
  EXPECT_THAT(strings(at(out.tree, {"optim", "param_groups", "0", "param_names"})), ElementsAre("c"));
  ASSERT_EQ(out.tree.find("optim")->find("state")->entries().size(), 1u);
  EXPECT_EQ(out.tree.find("optim")->find("state")->entries()[0].key.as_integer(), 1);

  EXPECT_EQ(code_of([&] { select(WithIds(false).m.checkpoint, s, changes); }), Exit::refused);
  s.drop.clear();
  EXPECT_EQ(code_of([&] { select(WithIds(false).m.checkpoint, s, changes); }), Exit::ok);   // ids do not care for names
  s.drop = {"a"};
  s.optimizer = false;
  EXPECT_EQ(code_of([&] { select(WithIds(false).m.checkpoint, s, changes); }), Exit::ok);
}

TEST(Select, OneDictAtTwoPlacesIsTheModelOnlyAtOne) {
  MadeCheckpoint m;
  const Value shared = dict({{"w", m.tensor("", {2})}, {"x", m.tensor("", {2})}});
  m.checkpoint.tree = dict({{"model", shared}, {"best", shared}});
  FindingSink sink;
  m.checkpoint.finish(sink);
  std::vector<Change> changes;
  Selection s;
  s.rename = {{"w", "v"}};
  EXPECT_THAT(leaves(select(m.checkpoint, s, changes)), ElementsAre("model.v", "model.x", "best.w", "best.x"));
  s.drop = {"x"};
  EXPECT_THAT(leaves(select(m.checkpoint, s, changes)), ElementsAre("model.v", "best.w", "best.x"));
  s = {};
  s.extra = false;
  EXPECT_THAT(leaves(select(m.checkpoint, s, changes)), ElementsAre("model.w", "model.x"));
}

TEST(Select, NestedModelsKeepTheirNestingWhereTheNewNameFits) {
  MadeCheckpoint m;
  m.checkpoint.tree = dict({{"model", dict({{"enc", dict({{"w", m.tensor("", {2})}, {"b", m.tensor("", {2})}})}})}, {"step", Value::integer(1)}});
  FindingSink sink;
  m.checkpoint.finish(sink);
  std::vector<Change> changes;
  Selection s;
  s.rename = {{"enc.w", "enc.weight"}, {"enc.b", "bias"}};
  const Checkpoint out = select(m.checkpoint, s, changes);
  EXPECT_THAT(leaves(out), ElementsAre("model.enc.weight", "model.bias", "step"));
}

TEST(WithTree, RenumbersInsideObjectsAndKeepsSharing) {
  MadeCheckpoint m;
  m.tensor("", {1});
  const Value kept = m.tensor("", {2});
  auto* object = new ObjectNode;
  object->callable = Value::global("m", "C");
  object->args = Value::sequence(Kind::tuple, {Value::storage(2, "torch.FloatStorage")});
  const Value inert = Value::adopt(object);
  m.tensor("", {4}, DType::uint8);
  const Value shared = dict({{"t", kept}});
  const Checkpoint out = with_tree(m.checkpoint, dict({{"a", shared}, {"b", shared}, {"o", inert}}));
  ASSERT_EQ(out.tensors.size(), 2u);
  EXPECT_EQ(out.tree.find("a")->find("t")->as_tensor().index, 0u);
  EXPECT_EQ(out.tree.find("a")->identity(), out.tree.find("b")->identity());
  EXPECT_EQ(out.tree.find("o")->node<ObjectNode>().args.items()[0].node<StorageNode>().index, 1u);
}

}  // namespace
}  // namespace fsdpctl
