// The skeleton: a whole HDF5 file, written by HDF5's own library, in which only the tensors' bytes are missing.
//
// It lies in an unnamed sparse temporary file: datasets are contiguous and have their place already, so what lies between
// them is all that HDF5 wrote, and what lies in them is for the engine to fill. The same content gives the same bytes.
#pragma once

#include <vector>

#include "formats/hdf5_content.h"
#include "lib/base/file.h"

namespace fsdpctl {

struct Hdf5Extent {
  TensorIndex tensor = kNoTensor;
  uint64_t offset = 0, length = 0;     // in the file
};

struct Hdf5Skeleton {
  FileHandle file;
  uint64_t size = 0;
  std::vector<Hdf5Extent> extents;     // by offset; tensors without bytes have none
};

// Error(failed) where the library or the temporary directory cannot.
Hdf5Skeleton make_hdf5_skeleton(const Checkpoint& checkpoint, const Hdf5Content& content);

}  // namespace fsdpctl
