// The part of verify that reads every byte. Used by verify.cpp only.
#pragma once

#include <vector>

#include "lib/ckpt/verify.h"

namespace fsdpctl {

// Sums of all readable tensors; damaged ones are reported, keep 0 and are `readable` no more. Requires resolved pieces.
std::vector<TensorSum> check_data(const Checkpoint& checkpoint, std::vector<bool>& readable,
                                  const VerifyOptions& options, VerifyReport& report, FindingSink& sink);

}  // namespace fsdpctl
