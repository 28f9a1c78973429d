// PyTorch's Distributed Checkpoint: a directory with `.metadata` and `__<rank>_<file>.distcp`. Spec: formats/dcp.md.
#pragma once

#include <memory>

#include "lib/ckpt/format.h"

namespace fsdpctl {

std::unique_ptr<Format> dcp_format();

}  // namespace fsdpctl
