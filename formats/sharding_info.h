// DCP_SHARDING_INFO: where the tensors of one .safetensors file lie in the global tensors, as PyTorch's
// HuggingFaceStorageWriter records it in `__metadata__`: {"<fqn>": {"saved_offsets": [0, 4]}, ...}.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "formats/safetensors_header.h"

namespace fsdpctl {

inline constexpr std::string_view kShardingInfoKey = "DCP_SHARDING_INFO";

// Offsets by FQN; dims are in the arena, names in the map.
using ShardingInfo = std::unordered_map<std::string, Dims>;

// The file's, or an empty one where it has none. Error(damaged) where it is malformed, (unsupported) where a name occurs twice.
ShardingInfo read_sharding_info(const SafetensorsHeader& header, const std::string& file_name, Arena& arena);

void begin_sharding_info(std::string& out);
void append_sharding_info(std::string_view fqn, Dims offset, std::string& out);
void end_sharding_info(std::string& out);

// "shard-00003-model-00001-of-00002.safetensors": rank 2, part 1 of 2. False for other names.
struct ShardName {
  uint32_t shard = 0;    // rank + 1
  uint32_t part = 0;
  uint32_t parts = 0;
};
bool parse_shard_name(std::string_view file_name, ShardName& out);
std::string shard_name(uint32_t shard);   // of the only part

}  // namespace fsdpctl
