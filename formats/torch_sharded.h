// Directories of torch.save files with an index, as transformers writes big models: pytorch_model.bin.index.json and
// pytorch_model-00001-of-00003.bin ...
#pragma once

#include <optional>
#include <string>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct TorchDirectory {
  std::string index;     // "pytorch_model.bin.index.json"; empty: `only` is the whole model
  std::string only;      // "pytorch_model.bin"
};
std::optional<TorchDirectory> find_torch_directory(const Source& source);

// Reads all shards into one dict. Missing shards and tensors are Error(damaged).
void read_torch_directory(Checkpoint& checkpoint, const TorchDirectory& directory, FindingSink& sink);

}  // namespace fsdpctl
