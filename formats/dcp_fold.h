// What the objects and dicts of a `.metadata` become: rows of DcpMetadata. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/dcp_cells.h"
#include "formats/dcp_globals.h"
#include "formats/dcp_meaning.h"
#include "formats/dcp_metadata.h"
#include "formats/dcp_names.h"
#include "lib/base/dims_table.h"

namespace fsdpctl {

// Keys of states.
inline constexpr std::array<std::string_view, 17> kDcpWords = {
    "state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", "properties", "size", "chunks",
    "offsets", "sizes", "fqn", "offset", "index", "relative_path", "length", "transform_descriptors", "dtype",
};

class DcpFold : public CellMeaning {
 public:
  // Numbers of kDcpWords.
  enum Word : uint32_t {
    kStateDictMetadata, kPlannerData, kStorageData, kStorageMeta, kVersion, kProperties, kSize, kChunks, kOffsets, kSizes,
    kFqn, kOffset, kIndex, kRelativePath, kLength, kTransforms, kDtype, kWordCount,
  };
  static_assert(kWordCount == kDcpWords.size());
  // `names` begins with kDcpWords; `size`: of the file.
  DcpFold(CellStore& store, NameTable& names, uint64_t size);
  Cell global(std::string_view module, std::string_view name) override { return globals_.number(module, name); }
  Cell call(Cell global, std::span<const Cell> args) override;
  void build(Cell object, std::span<const Cell> fields) override;
  void build_state(Cell object, Cell state) override;
  bool take(Cell dict, std::span<const Cell> items) override;
  void hold(Cell value) override;
  // Ends its use. `result`: the value that the pickle is. Warnings go to `sink`, with the file's name.
  DcpMetadata finish(Cell result, int protocol, const std::string& name, FindingSink& sink);

 private:
  using Fields = std::span<const Cell>;
  struct TensorRow {
    Dims shape;
    uint32_t properties = 0;
    uint32_t first_chunk = 0, chunk_count = 0;
    bool built = false;
  };
  struct IndexRow {
    const int64_t* offset = nullptr;
    uint32_t fqn = 0;
    int32_t index = -1;
    uint8_t dims = 0;
    bool has_offset = false;
  };
  struct InfoRow {                          // _StorageInfo
    uint64_t offset = 0, length = 0;
    uint32_t file = 0;
    uint32_t first_transform = 0;
    uint8_t transform_count = 0;
    bool built = false;
  };
  struct PathRow {
    uint32_t name = 0;
    uint32_t first_element = 0, element_count = 0;
  };
  struct PathDict {                         // a dict whose values are paths
    Cell dict;
    std::vector<PathRow> rows;
  };
  static constexpr uint8_t kUnbuilt = 255, kTaken = 128;   // beside the number of dims: a tensor has it
  static constexpr uint64_t kLeastChunk = 16;   // bytes of a pickle that even a shared chunk needs for its item

  // ---- objects (dcp_fold_objects.cpp)
  Cell make(DcpClass cls);
  Cell call_function(const DcpGlobal& function, Fields args);
  void build_metadata(Fields fields);
  void build_chunk(uint32_t row, Fields fields);
  void build_tensor(TensorRow& row, Fields fields);
  void take_chunks(TensorRow& row, std::span<const Cell> chunks);
  void build_index(IndexRow& row, Fields fields);
  void build_storage(InfoRow& row, Fields fields);
  void build_properties(std::optional<DType>& row, Cell dtype);
  std::vector<Cell> cells_of(Cell sequence) const;
  Dims dims(Cell size, const char* what);

  // ---- the big dicts (dcp_fold_dicts.cpp)
  void take_entries(Cell dict, Fields items);
  void take_storage(Cell dict, Fields items);
  bool place(const IndexRow& index, const InfoRow& info, uint32_t name, uint32_t file);
  void note_end(const InfoRow& info, uint32_t file);
  bool are_paths(Fields items) const;
  void take_paths(Cell dict, Fields items);
  void fold_paths(Cell dict);
  DcpEntry entry(std::string_view fqn, Cell value);
  uint32_t entry_of(uint32_t name) const { return name < entry_of_.size() ? entry_of_[name] : kNoDcpEntry; }
  std::span<const uint32_t> unified_keys(Fields items);

  CellStore& store_;
  NameTable& names_;
  bool keep_tensors_ = false, keep_items_ = false;   // rows of them may be used when their dict was taken
  DcpMetadata out_;
  DcpGlobals globals_;
  std::vector<Finding> warnings_;
  std::vector<std::optional<DType>> properties_;
  std::vector<TensorRow> tensors_;
  std::vector<IndexRow> indices_;
  std::vector<InfoRow> infos_;
  std::vector<uint8_t> chunk_dims_;         // parallel to out_.chunks; kUnbuilt: not yet
  std::vector<uint32_t> entry_of_;          // name -> entry
  std::unordered_map<uint32_t, uint64_t> file_ends_;   // file: how far its items reach
  uint32_t last_file_ = kNoDcpFile;
  uint64_t* last_end_ = nullptr;
  std::vector<PathDict> path_dicts_;
  Cell entries_, storage_;                  // the dicts that were taken
  std::vector<uint32_t> scratch_;
  DimsTable dims_;
  bool has_metadata_ = false;
  uint64_t claimed_chunks_ = 0, most_chunks_;   // of all tensors: sharing must not make much of little
};

}  // namespace fsdpctl
