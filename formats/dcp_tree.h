// The tree of a distributed checkpoint from the paths of its leaves, as PyTorch's unflatten_state_dict builds it: a
// string names a mapping's item, an integer a list's. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "formats/dcp_metadata.h"
#include "lib/base/finding.h"
#include "lib/base/value.h"

namespace fsdpctl {

class PathTree {
 public:
  // `leaves`: about how many will come.
  explicit PathTree(size_t leaves);
  // `fqn` is the leaf's name, different from all others'; it and the path's texts must stay. Error(damaged) where paths
  // contradict each other, with the key.
  void put(std::string_view fqn, std::span<const DcpPathElement> path, Value value);
  // Ends its use. Elements of lists that no path names are None, as in PyTorch, and reported. Errors as of put().
  Value finish(FindingSink& sink);

 private:
  enum class Shape : uint8_t { unknown, leaf, mapping, list };
  struct Node {
    DcpPathElement key;
    uint32_t parent = 0;
    uint32_t next = 0;                       // sibling; 0: none
    uint32_t first_child = 0, last_child = 0, children = 0;
    Shape shape = Shape::unknown;
    bool has_leaves = false, has_branches = false;   // among its children
    Value value;                             // leaves
  };
  uint32_t branch(uint32_t parent, const DcpPathElement& key);
  uint32_t add(uint32_t parent, const DcpPathElement& key);
  size_t slot(uint32_t parent, const DcpPathElement& key) const;
  void grow();
  void check_keys(uint32_t node) const;
  Value build(uint32_t node, FindingSink& sink);
  Value build_list(const Node& node, FindingSink& sink);
  std::string path_text(uint32_t node) const;

  std::vector<Node> nodes_;                  // the root first
  // Of nodes that are no leaves, open addressing: node, 0 where free. Leaves need no look-up: their names differ, and where names
  // are their paths' elements joined by dots the paths do, too.
  std::vector<uint32_t> index_;
  uint32_t branches_ = 0;
  bool named_by_path_ = true;                // so far every leaf
  std::vector<uint32_t> last_;               // branches of the path before, from the root
  uint64_t holes_ = 0;
};

}  // namespace fsdpctl
