// Writes `.metadata` in the one profile that every PyTorch from 2.2.2 to 2.15 loads: protocol 2, the old home of
// TensorProperties, 5 of its fields, neither storage_meta nor version (formats/dcp.md).
//
// The pickle is made of sections that can be rendered alone, in any order: what they share (class names, keys, FQNs, file names) has
// fixed memo numbers. So nobody ever holds the whole of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/dcp_flatten.h"
#include "lib/base/arena.h"
#include "lib/base/dtype.h"

namespace fsdpctl {

class DcpMetadataWriter {
 public:
  // `names`: how many FQNs there are. Appends to `out`.
  DcpMetadataWriter(uint64_t names, std::string& out) : names_(names), out_(out) {}

  void begin();                      // up to the first section of state_dict_metadata
  // A section of state_dict_metadata: begin_items(), entries, end_items(). Chunks follow their tensor.
  void begin_items() { out_ += '('; }
  void end_items() { out_ += 'u'; }
  void tensor(uint64_t name, std::string_view fqn, DType dtype, Dims shape);
  void chunk(Dims offset, Dims size);
  void end_tensor();
  void bytes(uint64_t name, std::string_view fqn);
  void end_state_dict();             // between it and the sections of planner_data
  void path(uint64_t name, std::span<const DcpPathStep> path);
  void end_paths();                  // between them and the sections of storage_data
  // Before a section that is the first to name a file.
  void file(uint64_t file, std::string_view file_name);
  void tensor_item(uint64_t name, uint64_t index, Dims box_offset);
  void byte_item(uint64_t name);
  void place(uint64_t file, uint64_t offset, uint64_t length);   // after either
  void end();

 private:
  void text(std::string_view utf8);
  void integer(uint64_t v);
  void size(Dims dims);
  void put(uint64_t memo);
  void get(uint64_t memo);
  void define(std::string_view utf8, uint64_t memo);
  void define_global(std::string_view module, std::string_view name, uint64_t memo);
  uint64_t name_memo(uint64_t name) const;
  uint64_t file_memo(uint64_t file) const;
  uint64_t names_;
  std::string& out_;
};

}  // namespace fsdpctl
