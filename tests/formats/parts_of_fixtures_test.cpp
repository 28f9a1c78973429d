// What real checkpoints hold, told apart: names and fields as the live model and optimizer had them when PyTorch saved it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/all_formats.h"
#include "lib/ckpt/placement.h"
#include "lib/ckpt/select.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;

Checkpoint open_fixture(const FormatList& formats, const std::string& path) {
  auto source = Source::open(path);
  const Format* best = nullptr;
  int strength = 0;
  for (const auto& format : formats) {
    const auto match = format->recognize(*source);
    if (match && match->strength > strength) best = format.get(), strength = match->strength;
  }
  if (best == nullptr) throw Error(Exit::unsupported, "not recognised").at(path);
  FindingSink sink(/*strict=*/false);
  return best->open(source, sink);
}

struct Case {
  std::string path;
  nlohmann::json expected;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.path; }

// Checkpoints with a model or an optimizer of the fixtures' training subject.
std::vector<Case> cases() {
  std::vector<Case> found;
  for (const std::string& root : {test_data("2.13.0"), shared_fixtures()}) {
    if (root.empty() || !fs::is_directory(root)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.path().filename() != "expected.json" || entry.path().string().find("frameworks") != std::string::npos) continue;
      const std::string fixture = entry.path().parent_path().filename().string();
      if (fixture.find("-ranks-") != std::string::npos || fixture.starts_with("hf-")) continue;
      nlohmann::json json = nlohmann::json::parse(std::ifstream(entry.path()));
      if (!json.contains("logical")) continue;
      for (const auto& stored : json.at("stored").items()) {
        if (fs::exists(entry.path().parent_path() / stored.key())) found.push_back({(entry.path().parent_path() / stored.key()).string(), json});
      }
    }
  }
  return found;
}

class PartsOf : public testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PartsOf);
INSTANTIATE_TEST_SUITE_P(Fixtures, PartsOf, testing::ValuesIn(cases()));

TEST_P(PartsOf, NamesAreThoseOfTheLiveModelAndOptimizer) {
  const FormatList formats = all_formats();
  const Checkpoint checkpoint = open_fixture(formats, GetParam().path);
  const Parts parts = find_parts(checkpoint);
  Names model, optimizer, expected_model, expected_optimizer;
  for (const auto& entry : GetParam().expected.at("logical").items()) {
    (entry.key().starts_with("state.") ? expected_optimizer : expected_model).insert(entry.key());
  }
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor == kNoTensor) continue;
    if (leaf.part == Part::model) model.insert(std::string(leaf.fqn));
    if (leaf.part == Part::optimizer) optimizer.insert("state." + std::string(leaf.fqn) + "." + std::string(leaf.field));
    if (leaf.part == Part::extra) {
      EXPECT_NE(leaf.path.find("rng"), std::string_view::npos) << leaf.path;
    }
  }
  EXPECT_TRUE(!model.empty() || !optimizer.empty());
  if (!model.empty()) {
    EXPECT_EQ(model, expected_model);
  }
  if (optimizer.empty()) return;
  ASSERT_EQ(parts.optimizers.size(), 1u);
  EXPECT_EQ(parts.optimizers[0].class_guess, "AdamW");
  EXPECT_EQ(parts.optimizers[0].groups.size(), 2u);
  if (parts.optimizers[0].integer_ids) {
    EXPECT_EQ(optimizer.size(), expected_optimizer.size());
  } else {
    EXPECT_EQ(optimizer, expected_optimizer);
  }
}

// The subject has a frozen matrix, a tied one, a float buffer and an integer buffer.
TEST_P(PartsOf, PlacementCutsParametersAndNothingElse) {
  const FormatList formats = all_formats();
  const Checkpoint checkpoint = open_fixture(formats, GetParam().path);
  const Parts parts = find_parts(checkpoint);
  const TargetPlacement placement = place(checkpoint, 3);
  Names cut, whole;
  for (const LeafInfo& leaf : parts.leaves) {
    if (leaf.tensor == kNoTensor) continue;
    const std::string name = leaf.part == Part::model ? std::string(leaf.fqn) : std::string(leaf.path);
    (placement.row(leaf.tensor).dim >= 0 ? cut : whole).insert(name);
  }
  for (const std::string& name : whole) {
    const bool buffer = name == "seen" || name == "temp" || name.ends_with("running") || name == "rng.torch";
    EXPECT_TRUE(buffer || name.ends_with(".step") || name.find(".4.") != std::string::npos || name.find(".temp.") != std::string::npos) << name;
  }
  if (parts.model == nullptr) return;
  for (const char* name : {"core.tok.weight", "core.head.weight", "anchor.weight", "lowp.weight", "mid.proj.weight"}) {
    EXPECT_EQ(cut.count(name), 1u) << name;
  }
  // The float buffer is told from a parameter only by names in the optimizer, or by how the others are stored.
  const bool told = checkpoint.world_size > 1 || (!parts.optimizers.empty() && parts.optimizers[0].named);
  EXPECT_EQ(whole.count("mid.proj.running"), told ? 1u : 0u);
}

TEST_P(PartsOf, NamesChangeEverywhere) {
  const FormatList formats = all_formats();
  const Checkpoint checkpoint = open_fixture(formats, GetParam().path);
  const Parts before = find_parts(checkpoint);
  if (before.model == nullptr) return;
  Selection selection;
  selection.rename = {{"^core\\.", "kernel."}};
  selection.drop = {"lowp.weight"};
  selection.optimizer = before.optimizers.empty() || before.optimizers[0].named;
  std::vector<Change> changes;
  const Checkpoint selected = select(checkpoint, selection, changes);
  const Parts after = find_parts(selected);
  size_t renamed = 0, expected = 0;
  for (const LeafInfo& leaf : before.leaves) expected += leaf.fqn.starts_with("core.");
  for (const LeafInfo& leaf : after.leaves) {
    EXPECT_FALSE(leaf.fqn.starts_with("core.") || leaf.fqn == "lowp.weight") << leaf.path;
    renamed += leaf.fqn.starts_with("kernel.");
  }
  EXPECT_GT(renamed, 0u);
  if (selection.optimizer) {
    EXPECT_EQ(renamed, expected);
  }
  for (const OptimizerInfo& o : after.optimizers) {
    for (const OptimizerGroup& group : o.groups) {
      for (const std::string_view name : group.params) EXPECT_FALSE(name.starts_with("core.") || name == "lowp.weight") << name;
    }
  }
}

}  // namespace
}  // namespace fsdpctl
