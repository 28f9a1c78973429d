// The format `hf-dcp`: PyTorch's HuggingFaceStorageWriter with save_distributed: one .safetensors file per rank (or a
// few), each with pieces of tensors and their offsets. Byte layout: formats/hf_dcp.md.
#pragma once

#include <memory>

#include "lib/ckpt/format.h"

namespace fsdpctl {
std::unique_ptr<Format> hf_dcp_format();
}
