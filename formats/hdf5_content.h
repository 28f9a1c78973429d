// What an HDF5 file of a checkpoint holds, before any byte is laid out: paths for tensors, texts for the rest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/hdf5_names.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct Hdf5Tensor {
  TensorIndex tensor = kNoTensor;
  std::vector<Hdf5Path> paths;    // the first in byte order of the link paths is the dataset, the others are hard links to it
};

struct Hdf5Text {
  Hdf5Path path;
  std::string text;
};

struct Hdf5Content {
  std::vector<Hdf5Tensor> tensors;    // in tree order
  std::vector<Hdf5Text> texts;        // for people: /extra/..., and the tree, which fsdpctl reads
  std::vector<std::pair<std::string, std::string>> attributes;   // of the root: the annotations that HDF5 can hold
};
Hdf5Content hdf5_content(const Checkpoint& checkpoint);

// Paths that two things would have, and what datasets cannot hold, as refusals; annotations that are lost, as warnings.
void check_hdf5_content(const Checkpoint& checkpoint, const Hdf5Content& content, FindingSink& sink);

inline constexpr size_t kHdf5MaxAttributeName = 256;       // bytes, with the zero at the end
inline constexpr size_t kHdf5MaxAttributes = 1000;         // of the root, that are read and written

// ---- the recorded tree, shared by writing and reading
inline constexpr std::string_view kHdf5Own = "fsdpctl";      // group of what only fsdpctl reads
inline constexpr std::string_view kHdf5Tree = "tree";        // the tree as `stored` JSON; tensor n is the n-th path in byte order
inline constexpr std::string_view kHdf5Paths = "paths";      // CRC-64 of those paths, each followed by a newline
std::string hdf5_paths_crc(const std::vector<std::string>& sorted_paths);

}  // namespace fsdpctl
