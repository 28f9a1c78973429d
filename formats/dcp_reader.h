// Opens a distributed checkpoint: metadata to catalog and tree.
#pragma once

#include <memory>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

Checkpoint open_dcp(std::shared_ptr<Source> source, FindingSink& sink);

}  // namespace fsdpctl
