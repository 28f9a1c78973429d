// The format `safetensors`: named tensors in one file, or in a directory of shards with an index. Byte layout and
// the names that fsdpctl gives: formats/safetensors.md.
#pragma once

#include <memory>

#include "lib/ckpt/format.h"

namespace fsdpctl {
std::unique_ptr<Format> safetensors_format();
}
