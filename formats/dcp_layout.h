// The files of a distributed checkpoint to be written: `__<rank>_0.distcp` for each rank, and `.metadata`.
#pragma once

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/layout.h"
#include "lib/ckpt/placement.h"

namespace fsdpctl {

FilePlan lay_out_dcp(const Checkpoint& checkpoint, const TargetPlacement& placement);

}  // namespace fsdpctl
