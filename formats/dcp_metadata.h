// `.metadata` of a distributed checkpoint, folded into packed rows while its pickle is read.
//
// A real one holds millions of small objects (100,000 tensors in 200,000 pieces: 43 MB, 17 million opcodes), so it never
// becomes a tree of Values: an object is a row as soon as it is built, the items of the big dicts are taken as they come,
// and each name is kept once. See formats/dcp.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/arena.h"
#include "lib/base/dtype.h"
#include "lib/base/finding.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// One step of a path of planner_data: a mapping's key, or a list's index.
struct DcpPathElement {
  const char* text = nullptr;    // null: a list index
  uint32_t length = 0;
  uint32_t index = 0;
  bool is_key() const { return text != nullptr; }
  std::string_view key() const { return {text, length}; }
};

// One name of state_dict_metadata: a tensor or a byte item (any other Python value).
struct DcpEntry {
  std::string_view fqn;
  Dims shape;                    // tensors
  uint32_t first_chunk = 0, chunk_count = 0;
  uint32_t first_element = 0, element_count = 0;   // its path; 0 elements: not recorded
  DType dtype = DType::float32;
  bool is_bytes = false;
};

inline constexpr uint32_t kNoDcpEntry = 0xFFFFFFFF;
inline constexpr uint32_t kNoDcpFile = 0xFFFFFFFF;

// A row of storage_data that nobody could give to its chunk at once: of a byte item, encoded, or without a good hint.
struct DcpStorage {
  uint64_t offset = 0, length = 0;      // bytes in `file`
  const int64_t* box_offset = nullptr;  // of the chunk it holds, `box_dims` elements
  uint32_t entry = kNoDcpEntry;         // none: a name that state_dict_metadata does not know
  uint32_t name = 0;                    // its FQN, a name's number
  uint32_t file = 0;                    // relative_path, a name's number
  uint32_t first_transform = 0;
  int32_t index = -1;                   // position in `chunks` as a hint, -1: none
  uint8_t transform_count = 0;
  uint8_t box_dims = 0;
  bool has_box = false;                 // byte items have none
};

struct DcpMetadata {
  std::shared_ptr<Arena> arena;         // owns names, paths and dims
  std::vector<std::string_view> names;    // by number
  std::vector<DcpEntry> entries;        // in the order of state_dict_metadata
  // As `chunks` of the tensors list them: pieces with a box of as many dims as the tensor's shape. `source` is kNoDcpFile, or where the
  // item is known the name of its file, a name's number; then `tensor` is the entry, and offset and length are the item's.
  std::vector<Piece> chunks;
  std::vector<DcpStorage> storage;      // the rest of storage_data, in its order
  bool apart = true;                    // each item of storage_data lies behind all those of its file that come before it
  std::vector<DcpPathElement> elements;
  std::vector<uint32_t> transforms;     // names' numbers
  int protocol = 0;
  bool has_planner_data = false;
  bool has_storage_meta = false;
  bool old_homes = false;               // TensorProperties of torch 2.2 and older
  size_t property_fields = 0;           // of TensorProperties: 5, from torch 2.15 on 6
  std::string_view version;             // "1.0.0"; empty when absent
  std::string_view home;                // module of the class Metadata
  std::vector<std::string_view> unknown_fields;   // of Metadata
};

// Bytes [offset, offset + out.size()) of the file.
using DcpRead = std::function<void(uint64_t offset, std::span<std::byte> out)>;

// Reads `size` bytes, front to back. Error(damaged) for what is no Metadata or cut short, Error(unsupported) for what is
// unsafe or impossible, with `name`, the file's, and mostly the offset. Warnings go to `sink`.
DcpMetadata read_dcp_metadata(const DcpRead& read, uint64_t size, const std::string& name, FindingSink& sink);

}  // namespace fsdpctl
