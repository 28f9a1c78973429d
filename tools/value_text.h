// Values of a checkpoint's tree as people read them: one short line, in Python's spelling. JSON has them whole.
#pragma once

#include <string>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Numbers and short texts in full; what is long by its type and size: `bytes[5056]`, `numpy uint32 [624]`,
// `(3, (2147483648, 1, ... 623 more), None)`. `checkpoint` knows the tensors that the value mentions.
std::string value_text(const Value& value, const Checkpoint& checkpoint);

}  // namespace fsdpctl
