// The format `torch`: files of torch.save (ZIP, and reading only the legacy stream) and directories of them with a
// pytorch_model.bin.index.json. Byte layout and rules: formats/torch.md.
#pragma once

#include <memory>

#include "lib/ckpt/format.h"

namespace fsdpctl {
std::unique_ptr<Format> torch_format();
}
