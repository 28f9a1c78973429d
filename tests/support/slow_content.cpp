#include "tests/support/slow_content.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/value_json.h"
#include "lib/ckpt/renumber.h"
#include "tests/support/slow_reference.h"

namespace fsdpctl {
namespace {

struct Leaves : TreeVisitor {
  std::vector<std::pair<std::string, TensorIndex>> tensors;
  std::map<std::string, std::string> values;
  void leaf(std::string_view path, const Value& value) override {
    if (value.is(Kind::tensor)) tensors.emplace_back(path, value.as_tensor().index);
    else values.emplace(path, value_to_json(value, JsonForm::canonical));
  }
};

std::string tensor_difference(const SlowContent::Tensor& a, const SlowContent::Tensor& b) {
  if (a.dtype != b.dtype) return fmt::format("dtype {} became {}", dtype_name(a.dtype), dtype_name(b.dtype));
  if (a.shape != b.shape) return fmt::format("shape {} became {}", dims_text(a.shape), dims_text(b.shape));
  if (a.first != b.first) return fmt::format("tied to '{}', then to '{}'", a.first, b.first);
  if (a.bytes.size() != b.bytes.size()) return "another number of bytes";
  const auto at = std::mismatch(a.bytes.begin(), a.bytes.end(), b.bytes.begin()).first;
  return at == a.bytes.end() ? "" : fmt::format("byte {} of {} differs", at - a.bytes.begin(), a.bytes.size());
}

std::string value_difference(const std::string& a, const std::string& b) {
  return a == b ? "" : fmt::format("{:.200} became {:.200}", a, b);
}

template <class Map, class Compare>
void compare_maps(const Map& expected, const Map& got, Compare compare, std::string& text) {
  for (const auto& item : expected) {
    const auto other = got.find(item.first);
    const std::string difference = other == got.end() ? "is missing" : compare(item.second, other->second);
    if (!difference.empty() && text.size() < 2000) text += fmt::format("'{}': {}\n", item.first, difference);
  }
  for (const auto& item : got) {
    if (expected.count(item.first) == 0 && text.size() < 2000) text += fmt::format("'{}': is new\n", item.first);
  }
}

}  // namespace

SlowContent slow_content(const Checkpoint& checkpoint) {
  Leaves leaves;
  walk_tree(checkpoint.tree, leaves);
  std::sort(leaves.tensors.begin(), leaves.tensors.end());
  SlowContent content;
  content.values = std::move(leaves.values);
  std::vector<std::string> first(checkpoint.tensors.size());
  std::vector<TensorIndex> numbers(checkpoint.tensors.size(), kNoTensor);
  TensorIndex next = 0;
  for (const auto& leaf : leaves.tensors) {
    const TensorInfo& info = checkpoint.tensors[leaf.second];
    if (numbers[leaf.second] == kNoTensor) {
      numbers[leaf.second] = next++;
      first[leaf.second] = leaf.first;
    }
    content.tensors[leaf.first] = {info.dtype, {info.shape.begin(), info.shape.end()}, slow_read(checkpoint, leaf.second), first[leaf.second]};
  }
  content.tree = value_to_json(renumbered(checkpoint.tree, numbers), JsonForm::canonical);
  return content;
}

std::string compare_content(const SlowContent& expected, const SlowContent& got, bool trees) {
  std::string text;
  compare_maps(expected.tensors, got.tensors, tensor_difference, text);
  compare_maps(expected.values, got.values, value_difference, text);
  if (text.empty() && trees && expected.tree != got.tree) text = fmt::format("tree:\n  {:.2000}\nbecame\n  {:.2000}\n", expected.tree, got.tree);
  return text;
}

}  // namespace fsdpctl
