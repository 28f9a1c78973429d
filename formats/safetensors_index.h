// model.safetensors.index.json: which shard of a directory holds which tensor.
//
// {"metadata": {"total_size": 12, text: text or number ...}, "weight_map": {name: file, ...}}. Streamed: an index of a
// million tensors costs a row each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors_header.h"

namespace fsdpctl {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kIndexEnding = ".safetensors.index.json";

struct IndexedTensor {
  std::string_view name;     // in the arena
  uint32_t file = 0;         // number in SafetensorsIndex::files
};

struct SafetensorsIndex {
  std::vector<IndexedTensor> tensors;    // in the order of weight_map
  std::vector<std::string> files;        // in order of first appearance
  std::optional<uint64_t> total_size;    // bytes of all tensors
  SafetensorsMetadata metadata;          // the rest of "metadata" as text
};

// Error(damaged) when malformed, (unsupported) for names that occur twice. File names are as written: check them.
SafetensorsIndex read_safetensors_index(const ReadAt& read, uint64_t file_size, const std::string& file_name, Arena& arena);

// As Hugging Face writes it: indented by two spaces.
void write_safetensors_index(const SafetensorsIndex& index, std::string& out);

}  // namespace fsdpctl
