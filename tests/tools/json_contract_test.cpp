// docs/json.md and the program say the same: every message and field that is printed is documented, and the reverse.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tests/support/process.h"
#include "tests/support/program.h"
#include "tests/support/temp_dir.h"

namespace fsdpctl {
namespace {

namespace fs = std::filesystem;

using Fields = std::map<std::string, std::set<std::string>>;  // by message type; of a summary by "summary <command>"

const std::string kSource = FSDPCTL_SOURCE_DIR;
const std::string kSample = kSource + "/samples/dcp-fsdp2-w4";

// The words in backticks that stand outside of parentheses and are no flags.
std::set<std::string> names_in(const std::string& text) {
  std::set<std::string> names;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '`') {
      const size_t end = text.find('`', i + 1);
      const std::string name = text.substr(i + 1, end - i - 1);
      if (depth == 0 && name[0] != '-') names.insert(name);
      i = end;
    } else {
      depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    }
  }
  return names;
}

Fields documented() {
  Fields fields;
  std::ifstream file(kSource + "/docs/json.md");
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) section = line.substr(3);
    if (section == "train") continue;  // tests/run looks at that
    if (line.rfind("`summary`: ", 0) == 0) {
      std::set<std::string> names = names_in(line.substr(11, line.find('.') - 11));
      names.insert("schema_version");
      for (const std::string command : {"inspect", "verify", "diff", "reshard", "convert", "save"}) {
        if (section.find(command) != std::string::npos) fields["summary " + command] = names;
      }
    }
    if (line.rfind("| `", 0) != 0 || line.rfind("| `summary`", 0) == 0) continue;
    const size_t end = line.find('`', 3);
    fields[line.substr(3, end - 3)] = names_in(line.substr(line.rfind(" | ", line.size() - 3)));
  }
  return fields;
}

class Contract : public testing::Test {
 protected:
  void run(std::vector<std::string> arguments) {
    const std::string command = arguments[0];
    arguments.push_back("--json");
    const ProcessResult result = run_fsdpctl(arguments);
    for (const std::string& text : {result.out, result.err}) {
      for (const nlohmann::json& object : json_lines(text)) {
        const std::string type = object["message_type"];
        std::set<std::string>& names = seen[type == "summary" ? "summary " + command : type];
        for (const auto& field : object.items()) names.insert(field.key());
        names.erase("message_type");
      }
    }
  }
  std::string at(const std::string& name) const { return work / name; }

  TempDir work;
  Fields seen;
};

TEST_F(Contract, WhatIsPrintedIsDocumentedAndTheReverse) {
  const std::string data = kSource + "/tests/data/2.13.0/";
  fs::copy(kSample, at("ckpt"), fs::copy_options::recursive);
  run({"verify", at("ckpt"), "--write-manifest", "--count-nonfinite"});
  run({"inspect", at("ckpt"), "--tensors", "--pieces", "--groups", "--extra", "--fingerprint", "--sha256"});
  run({"inspect", data + "plain/checkpoint.pt", "--tensors"});  // has aliases
  run({"inspect", data + "dcp-overwritten/ckpt"});              // has a finding
  run({"verify", at("ckpt"), "--data", "--write-lock", at("lock")});
  run({"verify", data + "odd-torch/views.pt", "--count-nonfinite", "--against", at("lock")});  // holds a NaN
  run({"convert", at("ckpt"), "-o", at("b.pt"), "--to", "torch", "--dtype", "bfloat16", "--progress", "always"});
  run({"reshard", at("ckpt"), "-o", at("w2"), "--world-size", "2"});
  run({"diff", at("ckpt"), at("b.pt")});
  run({"convert", data + "odd-torch/containers.pt", "-o", at("c"), "--to", "dcp"});
  run({"diff", data + "odd-torch/containers.pt", at("c")});
  for (const char* worker : {"0/2", "1/2"}) {
    run({"convert", at("ckpt"), "-o", at("worked.pt"), "--to", "torch", "--worker", worker});
    run({"reshard", at("ckpt"), "-o", at("worked"), "--world-size", "3", "--worker", worker});
  }
  run({"save", at("ckpt"), "-o", at("first")});
  for (const char* worker : {"0/2", "1/2"}) run({"save", at("ckpt"), "-o", at("first-2"), "--worker", worker});
  run({"inspect", at("none")});
  run({"inspect", at("ckpt"), "--threads", "0"});
  run({"reshard", at("b.pt"), "-o", at("w3"), "--world-size", "3"});
  fs::resize_file(at("ckpt/__0_0.distcp"), 100);
  run({"verify", at("ckpt"), "--data"});
  run({"convert", data + "dcp-objects-w2/ckpt", "-o", at("o"), "--to", "hf-dcp"});

  const Fields said = documented();
  for (const auto& [type, names] : said) {
    const std::set<std::string>& printed = seen[type];
    for (const std::string& name : names)
      EXPECT_EQ(printed.count(name), 1u) << type << "." << name << " is never printed";
  }
  for (const auto& [type, names] : seen) {
    const auto known = said.find(type);
    ASSERT_NE(known, said.end()) << type << " is not documented";
    for (const std::string& name : names)
      EXPECT_EQ(known->second.count(name), 1u) << type << "." << name << " is not documented";
  }
  EXPECT_GE(said.size(), 19u);
}

}  // namespace
}  // namespace fsdpctl
