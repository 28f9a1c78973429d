// Directories of torch.save files with an index, as transformers writes big models: pytorch_model.bin.index.json and
// pytorch_model-00001-of-00003.bin ...
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct TorchDirectory {
  std::vector<std::string> indexes;   // "pytorch_model.bin.index.json" first; none: `only` is the whole model
  std::string only;                   // "pytorch_model.bin"
};
std::optional<TorchDirectory> find_torch_directory(const Source& source);

// An index, or a file whose name says that it is one of several.
bool is_torch_part(std::string_view file_name);
// The index that `part` is, or that names it; nullopt where none does.
std::optional<TorchDirectory> find_torch_whole(Source& directory, const std::string& part);

// Reads all shards of the first index into one dict. Missing shards and tensors are Error(damaged), several indexes of which none has
// the usual name Error(refused).
void read_torch_directory(Checkpoint& checkpoint, const TorchDirectory& directory, FindingSink& sink);

}  // namespace fsdpctl
