// The classes and functions that a `.metadata` names, by number. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/codec/python_classes.h"
#include "formats/dcp_cells.h"
#include "lib/base/finding.h"

namespace fsdpctl {

// Our classes, found by their last name alone: their module has moved more than once.
enum class DcpClass : uint32_t { none, metadata, tensor, bytes, chunk, metadata_index, storage_info, tensor_properties };
inline constexpr std::array<std::string_view, 8> kDcpClassNames = {
    "", "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex", "_StorageInfo",
    "TensorProperties",
};

struct DcpGlobal {
  std::string module, name;              // Python 3's
  PythonName python;
  DcpClass cls = DcpClass::none;
  std::string full_name() const { return module + "." + name; }
};

class DcpGlobals {
 public:
  // A Cell::global for the name, `n` as CellMeaning says. Error(unsupported) where it is unsafe.
  Cell number(std::string_view module, std::string_view name);
  const DcpGlobal& operator[](Cell global) const { return rows_.at(global.ref()); }
  const DcpGlobal* find(DcpClass cls) const;                       // the one that was named last; null: none was
  std::vector<Finding>& warnings() { return warnings_; }           // classes that nobody knows

 private:
  std::vector<DcpGlobal> rows_;
  std::vector<Finding> warnings_;
};

}  // namespace fsdpctl
