#include "formats/dcp_flatten.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "lib/base/finding.h"
#include "lib/base/shell_quoted.h"

namespace fsdpctl {

bool is_descended(const Value& list) {
  for (const Value& item : list.items()) {
    if (item.is(Kind::tensor) || item.is_mapping()) return true;
    if (item.is(Kind::list) && is_descended(item)) return true;
  }
  return false;
}

DcpFlatState::DcpFlatState(const Value& tree) {
  if (!tree.is_mapping()) throw Error(Exit::refused, "a distributed checkpoint needs a mapping at the top").try_("--to torch, which keeps what is at the top");
  if (!tree.entries().empty()) visit(tree);
  refuse_equal_names();
}

void DcpFlatState::visit(const Value& value) {
  if (value.is_mapping() && !value.entries().empty()) {
    for (const Entry& e : value.entries()) {
      const bool text = e.key.is(Kind::string);
      here_.push_back({text ? e.key.text() : texts_.store(key_text(e.key)), -1});
      visit(e.value);
      here_.pop_back();
    }
  } else if (value.is(Kind::list) && is_descended(value)) {
    for (size_t i = 0; i < value.items().size(); ++i) {
      here_.push_back({{}, static_cast<int64_t>(i)});
      visit(value.items()[i]);
      here_.pop_back();
    }
  } else {
    add_leaf(value);
  }
}

void DcpFlatState::add_leaf(const Value& value) {
  if (steps_.size() + here_.size() >= 0xFFFFFFFF) throw Error(Exit::unsupported, "state dict has too many values");
  std::string fqn;
  for (const DcpPathStep& step : here_) {
    if (&step != here_.data()) fqn += '.';
    if (step.index < 0) fqn += step.text;
    else fqn += std::to_string(step.index);
  }
  leaves_.push_back({texts_.store(fqn), static_cast<uint32_t>(steps_.size()), static_cast<uint32_t>(here_.size()), &value});
  steps_.insert(steps_.end(), here_.begin(), here_.end());
}

// {"a": {"b.c": x}} and {"a.b": {"c": x}} give one name, and DCP knows nothing but names.
void DcpFlatState::refuse_equal_names() const {
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(leaves_.size());
  for (size_t l = 0; l < leaves_.size(); ++l) {
    const auto [at, is_new] = seen.emplace(leaves_[l].fqn, l);
    if (is_new) continue;
    auto steps = [this](const DcpSavedLeaf& leaf) {
      std::string text;
      for (const DcpPathStep& step : path(leaf)) text += (text.empty() ? "" : ", ") + (step.index < 0 ? "'" + std::string(step.text) + "'" : std::to_string(step.index));
      return "(" + text + ")";
    };
    throw Error(Exit::refused, "two values would get the same name")
        .key(std::string(leaves_[l].fqn))
        .saw("one of the two", steps(leaves_[at->second]) + " and " + steps(leaves_[l]))
        .try_("--drop " + shell_quoted(std::string(leaves_[l].fqn)) + ", which leaves both out");
  }
}

}  // namespace fsdpctl
