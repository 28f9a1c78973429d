// Names in HDF5 files: any Python key becomes a link name, and every tensor of a tree a path.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/parts.h"

namespace fsdpctl {

// HDF5 reserves `/` and a lone `.`. Names that hold one of them, or what no link name can hold (zero bytes, broken UTF-8,
// nothing at all), are written with %XX for the bytes in question; `%` too, so that no two names meet. Such a link's object has the
// original in the attribute `name`.
std::string hdf5_link_name(std::string_view name);      // equal to `name` where nothing is in the way
inline constexpr const char* kOriginalName = "name";

// Where a tensor or value of the tree is put. Elements are original names.
struct Hdf5Path {
  std::vector<std::string> elements;   // {"optimizer", "exp_avg", "lin.weight"}
};
std::string hdf5_link_path(const Hdf5Path& path);   // "optimizer/exp_avg/lin.weight", link names

// /model/<fqn>; /optimizer/<field>/<fqn> for optimizer state (below the optimizer's own path, where there are several);
// /extra/<path> for the rest.
Hdf5Path hdf5_path(const Parts& parts, const LeafInfo& leaf);

}  // namespace fsdpctl
