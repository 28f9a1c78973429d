// Opens HDF5 files as checkpoints: the reading half of formats/hdf5.cpp.
#pragma once

#include <memory>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

Checkpoint read_hdf5(std::shared_ptr<Source> source, FindingSink& sink);

}  // namespace fsdpctl
