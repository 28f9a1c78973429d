// What holds the leaves of a tree. A leaf is named by its path, so a dict and an OrderedDict, a Counter and a dict, a list and a tuple,
// a key 0 and a key "0" hold the same content; formats that cannot tell them apart (DCP) make one of the other. That they are of
// another class is said apart from differences of content. Used by diff.cpp only.
#pragma once

#include <vector>

#include "lib/ckpt/diff.h"

namespace fsdpctl {

// Equal whatever the classes of containers, and the order of mappings.
bool same_content(const Value& a, const Value& b);

// Containers at the same path, of which classes or kinds of keys differ, in A's order.
std::vector<ContainerChange> compare_containers(const Value& a, const Value& b);

}  // namespace fsdpctl
