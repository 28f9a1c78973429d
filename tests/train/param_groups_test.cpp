#include "lib/train/param_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/train/made_model.h"

namespace fsdpctl::train {
namespace {

using testing::ElementsAre;

class ParamGroups : public testing::Test {
 protected:
  ParamGroups() {
    for (const auto& [name, shape] : std::vector<std::pair<const char*, std::vector<int64_t>>>{
             {"embed.weight", {8, 4}}, {"layers.0.norm.weight", {4}}, {"layers.0.proj.weight", {4, 4}},
             {"layers.0.proj.bias", {4}}, {"scale", {}}, {"head.weight", {8, 4}}}) {
      model.add(cut(name, shape, 0, 1), {});
    }
  }
  std::vector<ParamGroup> groups(const std::vector<GroupRule>& rules, bool decay_one_dimensional = false) {
    OptimizerOptions options;
    options.defaults.weight_decay = 0.1;
    options.rules = rules;
    options.decay_one_dimensional = decay_one_dimensional;
    return make_param_groups(options, model.shards());
  }
  MadeModel model;
};

GroupRule rule(std::string match) {
  GroupRule made;
  made.match = std::move(match);
  return made;
}

TEST_F(ParamGroups, OneDimensionalParametersHaveNoDecay) {
  const auto made = groups({});
  ASSERT_EQ(made.size(), 2u);
  EXPECT_THAT(made[0].parameters, ElementsAre(0, 2, 5));
  EXPECT_EQ(made[0].options.weight_decay, 0.1);
  EXPECT_THAT(made[1].parameters, ElementsAre(1, 3, 4));
  EXPECT_EQ(made[1].options.weight_decay, 0);
  EXPECT_EQ(groups({}, true).size(), 1u);
}

TEST_F(ParamGroups, TheFirstRuleThatMatchesCounts) {
  GroupRule norms = rule("*norm*"), layers = rule("layers.*");
  norms.lr = 7, layers.weight_decay = 0.5, layers.beta2 = 0.95;
  const auto made = groups({norms, layers});
  ASSERT_EQ(made.size(), 4u);
  EXPECT_THAT(made[0].parameters, ElementsAre(1));
  EXPECT_EQ(made[0].options.lr, 7);
  EXPECT_EQ(made[0].initial_lr, 7);
  EXPECT_EQ(made[0].options.weight_decay, 0.1);   // a rule says what is different, nothing else
  EXPECT_THAT(made[1].parameters, ElementsAre(2, 3));
  EXPECT_EQ(made[1].options.weight_decay, 0.5);
  EXPECT_EQ(made[1].options.beta2, 0.95);
  EXPECT_THAT(made[2].parameters, ElementsAre(0, 5));
  EXPECT_THAT(made[3].parameters, ElementsAre(4));
}

TEST_F(ParamGroups, FrozenParametersAreInNone) {
  model[0].description.requires_grad = model[1].description.requires_grad = false;
  const auto made = groups({rule("embed.*")});   // the rule is of use all the same
  ASSERT_EQ(made.size(), 2u);
  EXPECT_THAT(made[0].parameters, ElementsAre(2, 5));
  EXPECT_THAT(made[1].parameters, ElementsAre(3, 4));
}

TEST_F(ParamGroups, ARuleThatMatchesNothingIsNamed) {
  const Finding finding = error_of([&] { groups({rule("embed.*"), rule("encoder.*")}); });
  EXPECT_EQ(finding.code, Exit::usage);
  EXPECT_EQ(finding.where.key, "groups[1].match");
  EXPECT_EQ(finding.found, "encoder.*");
  EXPECT_EQ(error_of([&] { groups({rule("*"), rule("head.*")}); }).where.key, "groups[1].match");   // an earlier one takes all
}

TEST_F(ParamGroups, ImpossibleOptionsAreNamed) {
  GroupRule bad = rule("*");
  bad.beta1 = 1;
  EXPECT_EQ(error_of([&] { groups({bad}); }).where.key, "groups[0].beta1");
  OptimizerOptions options;
  options.defaults.lr = -1;
  EXPECT_EQ(error_of([&] { make_param_groups(options, model.shards()); }).where.key, "lr");
}

}  // namespace
}  // namespace fsdpctl::train
