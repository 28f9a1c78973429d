// The format `hdf5`: one HDF5 file that h5py, h5dump and h5ls users find natural, and any HDF5 file of others. What is
// where: formats/hdf5.md.
#pragma once

#include <memory>

#include "lib/ckpt/format.h"

namespace fsdpctl {
std::unique_ptr<Format> hdf5_format();
}
