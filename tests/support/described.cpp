#include "tests/support/described.h"

#include <fmt/format.h>

#include "formats/all_formats.h"
#include "lib/base/checksum.h"
#include "lib/base/value_json.h"
#include "lib/ckpt/engine.h"

namespace fsdpctl {
namespace {

class Collector : public TreeVisitor {
 public:
  explicit Collector(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void leaf(std::string_view path, const Value& value) override {
    if (!value.is(Kind::tensor)) {
      result.values[std::string(path)] = nlohmann::json::parse(value_to_json(value, JsonForm::shown));
      return;
    }
    const TensorIndex t = value.as_tensor().index;
    const TensorInfo& info = checkpoint_.tensors[t];
    Sha256 sum;
    EngineOptions engine;
    engine.threads = 1;
    read_tensor(checkpoint_, t, engine, [&](uint64_t, std::span<const std::byte> bytes) { sum.update(bytes); });
    result.tensors[std::string(path)] = {{"dtype", dtype_name(info.dtype)},
                                         {"shape", std::vector<int64_t>(info.shape.begin(), info.shape.end())},
                                         {"sha256", sum.hex()}};
  }

  Described result;

 private:
  const Checkpoint& checkpoint_;
};

void compare_maps(const std::map<std::string, nlohmann::json>& expected, const std::map<std::string, nlohmann::json>& got,
                  std::string_view what, std::vector<std::string>& lines) {
  for (const auto& [name, value] : expected) {
    const auto hit = got.find(name);
    if (hit == got.end()) {
      lines.push_back(fmt::format("{} missing: {}", what, name));
    } else if (hit->second != value) {
      lines.push_back(fmt::format("{} differs: {}\n  expected {:.300}\n  got      {:.300}", what, name, value.dump(), hit->second.dump()));
    }
  }
  for (const auto& [name, value] : got) {
    if (!expected.count(name)) lines.push_back(fmt::format("{} unexpected: {} = {:.200}", what, name, value.dump()));
  }
}

}  // namespace

Described describe_checkpoint(const Checkpoint& checkpoint) {
  Collector collector(checkpoint);
  walk_tree(checkpoint.tree, collector);
  for (const Alias& alias : checkpoint.aliases) collector.result.aliases.insert(alias.key);
  return std::move(collector.result);
}

Described describe_path(const std::string& path) {
  const FormatList formats = all_formats();
  FindingSink sink;
  Opened opened = open_checkpoint(formats, path, sink);
  resolve_pieces(opened.checkpoint, 1, sink);
  return describe_checkpoint(opened.checkpoint);
}

std::string compare_described(const Described& expected, const Described& got) {
  std::vector<std::string> lines;
  compare_maps(expected.tensors, got.tensors, "tensor", lines);
  compare_maps(expected.values, got.values, "value", lines);
  std::string text;
  for (size_t i = 0; i < lines.size() && i < 20; ++i) text += lines[i] + "\n";
  if (lines.size() > 20) text += fmt::format("... and {} more\n", lines.size() - 20);
  return text;
}

}  // namespace fsdpctl
