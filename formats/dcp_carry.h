// What a distributed checkpoint cannot carry: findings for Format::can_carry.
#pragma once

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

void report_dcp_losses(const Checkpoint& checkpoint, FindingSink& sink);

}  // namespace fsdpctl
