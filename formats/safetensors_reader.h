// Opens safetensors checkpoints: the reading half of formats/safetensors.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/codec/json_events.h"
#include "formats/safetensors_header.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// The files at the top of a directory that may be part of a safetensors checkpoint.
struct SafetensorsListing {
  std::vector<std::string> files;     // *.safetensors
  std::vector<std::string> indexes;   // *.safetensors.index.json
  std::vector<std::string> others;    // files of other checkpoint formats: *.bin, *.pt ...
  bool per_rank = false;              // some are hf-dcp's, which has no index
};
SafetensorsListing list_safetensors(const Source& source);

Checkpoint read_safetensors_file(std::shared_ptr<Source> source, const std::string& name, FindingSink& sink);
// Shards with an index; without one, a single file or a complete numbered set.
Checkpoint read_safetensors_directory(std::shared_ptr<Source> source, FindingSink& sink);
// An index, or a file whose name says that it is one of several.
bool is_safetensors_part(std::string_view file_name);
// The shards of that index, or of the one that names that shard; nullopt where none does.
std::optional<Checkpoint> read_safetensors_whole(std::shared_ptr<Source> directory, const std::string& part, FindingSink& sink);

// ---- shared with hf-dcp
ReadAt read_at(const Source& source, SourceIndex file);

}  // namespace fsdpctl
