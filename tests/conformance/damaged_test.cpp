// Every damaged and hostile fixture: the right exit code, a message that names the damage, no crash, no hang, little memory,
// and nothing executed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

struct Damage {
  std::string name, kind, path;
};
void PrintTo(const Damage& d, std::ostream* out) { *out << d.path; }

std::vector<Damage> all_damages() {
  std::vector<Damage> all;
  for (const std::string& root : {shared_fixtures() + "/damaged", test_data("damaged")}) {
    if (!fs::exists(root + "/manifest.json")) continue;
    const nlohmann::json manifest = nlohmann::json::parse(std::ifstream(root + "/manifest.json"));
    for (const auto& [name, row] : manifest.items()) {
      for (const auto& entry : fs::directory_iterator(root + "/" + name)) {
        const std::string file = entry.path().filename().string();
        if (file == "outside.distcp" || file == "elsewhere.bin") continue;   // what the escaping names point at
        all.push_back({name, row.at("class"), entry.path().string()});
      }
    }
    break;   // the shared set contains the one under tests/data
  }
  std::sort(all.begin(), all.end(), [](const Damage& a, const Damage& b) { return a.path < b.path; });
  return all;
}

bool allowed(const std::string& kind, const ProcessResult& r) {
  const bool warned = r.err.find("warning") != std::string::npos || r.out.find("warning") != std::string::npos;
  if (kind == "damaged") return r.exit_code == 3;
  if (kind == "inconsistent") return r.exit_code == 3 || (r.exit_code == 0 && warned);
  if (kind == "unsafe") return r.exit_code == 3 || r.exit_code == 5;
  return r.exit_code == 0;   // valid, undetectable
}

// Words of which one must appear: the message has to name the damage, not only to fail.
const std::vector<std::pair<std::string, std::vector<std::string>>> kWords = {
    {"bitflip", {"checksum"}},          {"wrong-crc", {"checksum"}},   {"truncated", {"end", "short", "trunc", "size", "beyond", "record"}},
    {"missing", {"missing", "absent", "not there", "not found"}},       {"overlap", {"overlap"}},
    {"hole", {"hole", "cover", "missing"}},                             {"outside", {"outside", "beyond", "leaves"}},
    {"os-system", {"system"}},          {"traversal", {"leave", "outside", "..", "escap"}}, {"absolute", {"absolute", "leave", "outside"}},
    {"symlink", {"link"}},              {"duplicate", {"duplicate", "twice"}},              {"encrypted", {"encrypt"}},
    {"lfs", {"LFS"}},                   {"empty", {"empty", "0 bytes"}}, {"deep", {"deep", "nest", "depth"}},
    {"laughs", {"large", "expand", "shared", "too many"}},              {"transform", {"rot13"}},
    {"trailing", {"trailing", "beyond", "end", "size"}},                {"dtype", {"dtype", "float64"}},
};

class Damaged : public testing::TestWithParam<Damage> {};

TEST_P(Damaged, IsReportedAndDoesNoHarm) {
  const Damage& d = GetParam();
  TempDir scratch;
  ProcessOptions options;
  options.directory = scratch.path();
  const std::vector<std::vector<std::string>> commands = {{"verify", "--data", d.path}, {"inspect", "--tensors", "--extra", d.path},
                                                          {"convert", d.path, "-o", scratch / "out.pt", "--to", "torch"}};
  for (const auto& command : commands) {
    const ProcessResult r = run_fsdpctl(command, options);
    SCOPED_TRACE(command[0] + "\n" + r.out + r.err);
    EXPECT_EQ(r.signal, 0);
    if (!kSanitized) {
      EXPECT_LT(r.cpu_seconds, 2.0);
      EXPECT_LT(r.peak_kib, 64 * 1024);
    }
    EXPECT_FALSE(fs::exists(scratch / "PWNED"));
    if (command[0] == "verify") {
      EXPECT_TRUE(allowed(d.kind, r)) << d.kind << " ended with " << r.exit_code;
      if (r.exit_code != 0) {
        EXPECT_NE(r.out.size() + r.err.size(), 0u);
        for (const auto& [part, words] : kWords) {
          if (d.name.find(part) == std::string::npos) continue;
          EXPECT_TRUE(std::any_of(words.begin(), words.end(),
                                  [&](const std::string& w) { return (r.out + r.err).find(w) != std::string::npos; }))
              << "the message does not name the damage (" << d.name << ")";
          break;
        }
      }
      if (d.kind == "undetectable") {
        EXPECT_EQ((r.out + r.err).find("verified"), std::string::npos);
        EXPECT_NE((r.out + r.err).find("not recorded"), std::string::npos);
      }
    }
    if (command[0] == "convert" && (d.kind == "damaged" || d.kind == "unsafe")) {
      EXPECT_NE(r.exit_code, 0);
      EXPECT_FALSE(fs::exists(scratch / "out.pt"));
    }
  }
}

std::string damage_name(const testing::TestParamInfo<Damage>& info) {
  std::string name = info.param.name + "_" + fs::path(info.param.path).filename().string();
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Damaged, testing::ValuesIn(all_damages()), damage_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Damaged);

TEST(DamagedSet, IsPresent) {
  if (all_damages().empty()) GTEST_SKIP() << "no damaged fixtures beside the repository or under tests/data";
}

}  // namespace
}  // namespace fsdpctl
