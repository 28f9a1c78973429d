// One file of torch.save, whichever of its containers it is in: for the formats that consist of such files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lib/base/checksum.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

enum class TorchContainer : uint8_t {
  zip,
  legacy,        // concatenated pickles and storages, the default before torch 1.6
  pickle,        // starts like a pickle, but not with torch's magic number
  tar,           // torch 0.1
  preview,       // "PYTORCH1", never released
};
// From a file's first bytes (kTorchHead of them, or all). nullopt: no torch.save file.
inline constexpr size_t kTorchHead = 512;
std::optional<TorchContainer> torch_container(Bytes head);

// Adds the file's tensors and pieces to `checkpoint` (rank as given) and returns its object. `detail` is for
// Checkpoint::format_detail: "ZIP, torch 2.7 or newer".
Value read_torch_file(Checkpoint& checkpoint, SourceIndex source, int rank, FindingSink& sink, std::string* detail = nullptr);

// The same for a legacy stream only.
Value read_torch_legacy(Checkpoint& checkpoint, SourceIndex source, int rank, FindingSink& sink);

}  // namespace fsdpctl
