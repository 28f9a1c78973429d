// The tree of a distributed checkpoint from the paths of its leaves, as PyTorch's unflatten_state_dict builds it: a
// string names a mapping's item, an integer a list's.
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
  PathTree();
  // Texts of paths must stay. Error(damaged) where paths contradict each other, with the key.
  void put(std::span<const DcpPathElement> path, Value value);
  // Ends its use. Elements of lists that no path names are None, as in PyTorch, and reported.
  Value finish(FindingSink& sink);

 private:
  enum class Shape : uint8_t { unknown, leaf, mapping, list };
  struct Node {
    DcpPathElement key;
    uint32_t parent = 0;
    uint32_t next = 0;                       // sibling; 0: none
    uint32_t first_child = 0, last_child = 0, children = 0;
    Shape shape = Shape::unknown;
    Value value;                             // leaves
  };
  uint32_t child(uint32_t parent, const DcpPathElement& key);
  size_t slot(uint32_t parent, const DcpPathElement& key) const;
  void grow();
  Value build(uint32_t node, FindingSink& sink);
  Value build_list(const Node& node, FindingSink& sink);
  std::string path_text(uint32_t node) const;

  std::vector<Node> nodes_;                  // the root first
  std::vector<uint32_t> index_;              // open addressing: node, 0 where free
  std::vector<uint32_t> last_;               // nodes of the path before, from the root
  uint64_t holes_ = 0;
};

}  // namespace fsdpctl
