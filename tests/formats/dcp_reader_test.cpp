// Distributed checkpoints that real PyTorch wrote, read element by element and compared with what real PyTorch reads in
// them; and what no reader may accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/dcp.h"
#include "lib/base/checksum.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/tiling.h"
#include "tests/support/error_of.h"
#include "tests/support/slow_reference.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

Checkpoint open_directory(const std::string& path, FindingSink& sink) {
  Checkpoint c = dcp_format()->open(Source::open(path), sink);
  resolve_pieces(c, 2, sink);
  return c;
}

class Collector : public TreeVisitor {
 public:
  explicit Collector(const Checkpoint& c) : checkpoint_(c) {}
  void leaf(std::string_view path, const Value& value) override {
    if (!value.is(Kind::tensor)) {
      values[std::string(path)] = json::parse(value_to_json(value, JsonForm::shown));
      return;
    }
    const TensorIndex t = value.as_tensor().index;
    const TensorInfo& info = checkpoint_.tensors[t];
    Sha256 sum;
    const std::string bytes = slow_read(checkpoint_, t);
    sum.update(std::as_bytes(std::span(bytes)));
    json& row = tensors[std::string(path)];
    row["dtype"] = dtype_name(info.dtype);
    row["shape"] = std::vector<int64_t>(info.shape.begin(), info.shape.end());
    row["sha256"] = sum.hex();
  }
  json tensors = json::object(), values = json::object();

 private:
  const Checkpoint& checkpoint_;
};

struct Case {
  std::string path, fixture, relative;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.path; }

json expected_of(const std::string& fixture) { return json::parse(std::ifstream(fixture + "/expected.json")); }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& root : {test_data(""), shared_fixtures()}) {
    if (root.empty()) continue;
    for (const auto& version : fs::directory_iterator(root)) {
      if (!version.is_directory() || version.path().filename() == "damaged" || version.path().filename() == "frameworks") continue;
      for (const auto& fixture : fs::directory_iterator(version.path())) {
        if (!fs::exists(fixture.path() / "expected.json")) continue;
        const json expected = expected_of(fixture.path().string());
        for (const auto& [relative, stored] : expected.at("stored").items()) {
          if (stored.value("kind", "").starts_with("dcp")) cases.push_back({fixture.path() / relative, fixture.path(), relative});
        }
      }
    }
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.path < b.path; });
  return cases;
}

class RealDcp : public testing::TestWithParam<Case> {};

TEST_P(RealDcp, ReadsWhatPyTorchReads) {
  const json stored = expected_of(GetParam().fixture).at("stored").at(GetParam().relative);
  FindingSink sink;
  const Checkpoint c = open_directory(GetParam().path, sink);
  check_tiling(c, sink);
  Collector got(c);
  walk_tree(c.tree, got);
  EXPECT_EQ(got.tensors, stored.at("tensors")) << json::diff(stored.at("tensors"), got.tensors);
  EXPECT_EQ(got.values, stored.at("values")) << json::diff(stored.at("values"), got.values);
  EXPECT_EQ(c.metadata_file.find(".metadata") != std::string::npos, true);
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = fs::path(info.param.fixture).parent_path().filename().string() + "_" + fs::path(info.param.fixture).filename().string();
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name + "_" + std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(All, RealDcp, testing::ValuesIn(all_cases()), case_name);

TEST(RealDcpSet, SharedOnesArePresent) {
  if (shared_fixtures().empty()) GTEST_SKIP() << "no shared fixtures beside the repository: only tests/data was walked";
  EXPECT_GT(all_cases().size(), 80u);
}

// ---- what is damaged

std::vector<Finding> findings_of(const std::string& path) {
  FindingSink sink(false);
  try {
    const Checkpoint c = open_directory(path, sink);
    check_tiling(c, sink);
  } catch (const Error& e) {
    return {e.finding()};
  }
  return sink.all();
}

Finding worst_of(const std::string& path) {
  Finding worst = note("sound");
  worst.code = Exit::ok;
  for (const Finding& f : findings_of(path)) {
    if (f.severity > worst.severity) worst = f;
  }
  return worst;
}

TEST(DamagedDcp, EachIsReportedForWhatItIs) {
  const std::string root = shared_fixtures() + "/damaged";
  if (shared_fixtures().empty()) GTEST_SKIP() << "no shared fixtures beside the repository";
  const json manifest = json::parse(std::ifstream(root + "/manifest.json"));
  for (const auto& [name, row] : manifest.items()) {
    if (!name.starts_with("dcp-")) continue;
    const Finding f = worst_of(root + "/" + name + "/ckpt");
    const std::string kind = row.at("class");
    SCOPED_TRACE(name + ": " + f.what + " | " + f.where.text() + " | " + f.saw_text());
    if (name == "dcp-bitflip" || kind == "undetectable") {   // the structure is sound
      EXPECT_EQ(f.severity, Severity::note);
      continue;
    }
    EXPECT_EQ(f.severity, Severity::error);
    EXPECT_TRUE(f.code == Exit::damaged || (kind == "unsafe" && f.code == Exit::unsupported));
  }
}

}  // namespace
}  // namespace fsdpctl
