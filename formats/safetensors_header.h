// The header of a .safetensors file: 8 bytes of length, JSON, and what it claims about the data behind it.
//
// Reading trusts nothing: every rule of the format (formats/safetensors.md) is checked here, before anyone
// looks at data, and memory grows with the bytes that are there, not with what they claim. Shared by the formats
// `safetensors` and `hf-dcp`. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/codec/json_events.h"
#include "lib/base/arena.h"
#include "lib/base/dtype.h"
#include "lib/base/finding.h"

namespace fsdpctl {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;   // bytes of JSON, as the reference reader has it

// One tensor. Views are owned by the arena given to the reader, or by whoever fills it for the writer.
struct SafetensorsEntry {
  std::string_view name;
  DType dtype = DType::float32;
  Dims shape;                // as PyTorch counts: the last dimension of float4_e2m1fn_x2 in bytes, not in values
  uint64_t begin = 0;        // bytes, from the start of the data
  uint64_t length = 0;
};

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;   // `__metadata__`, in order

struct SafetensorsHeader {
  uint64_t data_offset = 0;                 // of the data, in the file
  std::vector<SafetensorsEntry> entries;    // in the order of the header
  SafetensorsMetadata metadata;
};

// Reads the header of a file of `file_size` bytes. What cannot be read at all is an Error (damaged; unsupported for
// a name that occurs twice). A tensor that lies about itself goes to `sink` and, where that goes on, is left out.
// Unknown dtypes are Exit::unsupported, unknown fields a warning.
SafetensorsHeader read_safetensors_header(const ReadAt& read, uint64_t file_size, const std::string& file_name,
                                          Arena& arena, FindingSink& sink);

// Appends length, JSON and padding; the data follows at a multiple of 64. Entries may be in any order.
void write_safetensors_header(const SafetensorsMetadata& metadata, std::span<const SafetensorsEntry> entries,
                              std::string& out);

std::optional<DType> dtype_of_safetensors(std::string_view tag);   // nullopt for tags that PyTorch has no dtype for
// "BF16"; empty for what the format cannot hold.
std::string_view safetensors_dtype(DType dtype);
// Position among the dtypes: data is written from the highest to the lowest, which aligns every tensor.
int safetensors_dtype_order(DType dtype);

}  // namespace fsdpctl
