// A state dict taken apart as PyTorch 2.4 and newer do it when they save: names, paths, and what lies there.
//
// Mappings are always descended, lists where they hold a tensor, a mapping, or a list that must be; everything else
// is a value of its own, tuples and sets included. Unlike PyTorch, which forgets them, an empty mapping is a value, too.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/base/arena.h"
#include "lib/base/value.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct DcpPathStep {
  std::string_view text;           // a mapping's key
  int64_t index = -1;              // a list's index; -1: a key
};

struct DcpSavedLeaf {
  std::string_view fqn;            // the path, joined by dots
  uint32_t first_step = 0, step_count = 0;
  const Value* value = nullptr;    // in the checkpoint's tree
  bool is_tensor() const { return value->is(Kind::tensor); }
};

// Views into the checkpoint's tree, which must outlive it.
class DcpFlatState {
 public:
  // Throws Error(refused) where the tree is no mapping, or two leaves have one name.
  explicit DcpFlatState(const Value& tree);
  const std::vector<DcpSavedLeaf>& leaves() const { return leaves_; }
  std::span<const DcpPathStep> path(const DcpSavedLeaf& leaf) const { return std::span(steps_).subspan(leaf.first_step, leaf.step_count); }

 private:
  void visit(const Value& value);
  void add_leaf(const Value& value);
  void refuse_equal_names() const;

  Arena texts_;
  std::vector<DcpPathStep> here_;
  std::vector<DcpPathStep> steps_;
  std::vector<DcpSavedLeaf> leaves_;
};

// Is this list taken apart? (Others are one value.)
bool is_descended(const Value& list);

}  // namespace fsdpctl
