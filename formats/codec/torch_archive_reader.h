// read_torch_archive on any bytes: for its callers in this folder and for fuzzing.
#pragma once

#include <string>

#include "formats/codec/pickle_reader.h"
#include "formats/codec/torch_archive.h"

namespace fsdpctl {

// An archive inside a file, or in memory: then `source` only ends up in pieces.
struct TorchArchiveSlice {
  const ZipRead& read;         // offsets from the archive's start
  uint64_t length = 0;
  const std::string& name;     // file, for messages
  uint64_t base = 0;           // the archive's offset in it
  SourceIndex source = 0;
  SharingBudget* sharing = nullptr;   // of the checkpoint that it is one of many in; null: it has one of its own
};
Value read_torch_archive(Checkpoint& checkpoint, const TorchArchiveSlice& slice, int rank, FindingSink& sink,
                         TorchArchiveFacts* facts = nullptr);

}  // namespace fsdpctl
