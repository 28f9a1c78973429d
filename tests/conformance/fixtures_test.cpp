// Every checkpoint that real PyTorch wrote, against what real PyTorch reads in it: all of the shared fixtures where they
// exist, and those under tests/data always.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/described.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string path;       // of the checkpoint
  std::string expected;   // expected.json
  std::string relative;   // key in "stored"
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.path; }

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(std::ifstream(path)); }

std::vector<Case> cases_below(const std::string& root) {
  std::vector<Case> cases;
  if (root.empty() || !fs::is_directory(root)) return cases;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() != "expected.json") continue;
    if (entry.path().string().find("/frameworks/") != std::string::npos) continue;
    const nlohmann::json expected = read_json(entry.path().string());
    for (const auto& [relative, stored] : expected.at("stored").items()) {
      const fs::path at = relative == "." ? entry.path().parent_path() : entry.path().parent_path() / relative;
      cases.push_back({at.string(), entry.path().string(), relative});
    }
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.path < b.path; });
  return cases;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = cases_below(test_data(""));
  for (Case& c : cases_below(shared_fixtures())) cases.push_back(std::move(c));
  return cases;
}

// The oracle shows a directory of .bin files file by file; a checkpoint is their union.
void strip_file_names(std::map<std::string, nlohmann::json>& names) {
  std::map<std::string, nlohmann::json> stripped;
  for (auto& [name, value] : names) {
    const size_t end = name.find(".bin.");
    stripped[end == std::string::npos ? name : name.substr(end + 5)] = value;
  }
  names = std::move(stripped);
}

class Fixture : public testing::TestWithParam<Case> {};

TEST_P(Fixture, ReadsWhatRealPyTorchReads) {
  const Case& c = GetParam();
  const nlohmann::json json = read_json(c.expected);
  const nlohmann::json& stored = json.at("stored").at(c.relative);
  const std::string kind = stored.value("kind", "");
  if (kind == "ranks") {
    // Sets of per-rank files are recognised by name and refused.
    try {
      describe_path(c.path);
      FAIL() << "a set of per-rank files was opened";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::unsupported) << e.what();
      EXPECT_NE(std::string(e.what()).find("rank"), std::string::npos) << e.what();
    }
    return;
  }
  Described expected;
  for (const auto& [name, value] : stored.at("tensors").items()) expected.tensors[name] = value;
  for (const auto& [name, value] : stored.at("values").items()) expected.values[name] = value;
  if (kind == "torch-dir") strip_file_names(expected.tensors), strip_file_names(expected.values);
  Described got = describe_path(c.path);
  // The safetensors library does not show the names that save_model dropped; we show them as aliases.
  if (kind == "hf") std::erase_if(got.tensors, [&](const auto& t) { return got.aliases.count(t.first) && !expected.tensors.count(t.first); });
  EXPECT_EQ(compare_described(expected, got), "");
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = fs::path(info.param.expected).parent_path().parent_path().filename().string() + "_" +
                     fs::path(info.param.expected).parent_path().filename().string() + "_" + info.param.relative;
  for (char& ch : name) {
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  }
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(All, Fixture, testing::ValuesIn(all_cases()), case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fixture);

TEST(Fixtures, SharedOnesArePresent) {
  if (shared_fixtures().empty()) GTEST_SKIP() << "no shared fixtures beside the repository: only tests/data was walked";
  EXPECT_GT(all_cases().size(), 100u);
}

}  // namespace
}  // namespace fsdpctl
