// One `.metadata` into the catalog: entries, chunks and items are matched, checked, and become tensors and pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/dcp_bytes.h"
#include "formats/dcp_items.h"
#include "formats/dcp_metadata.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// A name of the state dict and what was found for it: a tensor, a value, or (where it is damaged) neither.
struct DcpLeaf {
  static constexpr uint32_t kNoValue = 0xFFFFFFFF;
  std::string_view fqn;
  uint32_t first_element = 0, element_count = 0;   // its path
  TensorIndex tensor = kNoTensor;
  uint32_t value = kNoValue;                       // byte item
};

// Grows over the metadata files of a checkpoint: one, or one for each rank.
struct DcpContent {
  std::vector<DcpLeaf> leaves;
  std::vector<DcpPathElement> elements;
  std::vector<DcpByteItem> values;
  std::vector<std::string> files;                  // that items lie in
  int32_t highest_rank = -1;
  bool zstd = false;
  std::vector<std::shared_ptr<Arena>> arenas;      // own what the views above show
};

class DcpCatalog {
 public:
  // Adds to `checkpoint`, `items` and `content`. `name` is the metadata's file. All must outlive it, but `metadata` is used up.
  DcpCatalog(Checkpoint& checkpoint, DcpItems& items, DcpContent& content, const std::string& name, FindingSink& sink);
  // Damage goes to the sink: what is damaged is left out.
  void add(DcpMetadata metadata);

 private:
  enum class FileState : uint8_t { usable, missing, outside };
  // An item of a chunk or of a value, numbered: chunks first, then rows of storage.
  struct Item {
    uint32_t entry = 0, file = 0;
    uint64_t offset = 0, length = 0;
    uint64_t end() const { return offset + std::min(length, UINT64_MAX - offset); }
  };
  struct File {                   // as named by items
    FileState state = FileState::usable;
    SourceIndex source = 0;
    int32_t rank = -1;
    uint64_t size = 0;            // bytes
    uint64_t items = 0;           // that lie in it
    uint64_t beyond = 0;          // of these, that end beyond its end
    uint64_t end = 0;             // where the farthest ends
  };
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  void match_items();
  void match_chunk(uint32_t row);
  uint32_t find_chunk(uint32_t entry, const DcpStorage& row);
  const std::vector<uint32_t>& sorted_chunks(uint32_t entry);
  void locate_items();
  File* locate(const Item& item, std::string_view fqn);
  File& file_of(uint32_t name, std::string_view fqn);
  bool known_transforms(const DcpStorage& row);
  void report_files();
  bool files_share_names() const;
  void check_overlaps();
  void note_same_bytes(uint32_t a, uint32_t b);
  bool same_tensor(const DcpEntry& a, const DcpEntry& b) const;
  void add_entries();
  TensorIndex tensor_for(uint32_t entry, const DcpLeaf* known);
  void add_chunks(TensorIndex tensor, const DcpEntry& entry);
  void drop_chunks(const DcpEntry& entry);
  void hand_over_pieces();
  void add_value(uint32_t entry, DcpLeaf& leaf);
  std::string_view fqn_of(const DcpStorage& row) const { return metadata_.names[row.name]; }
  std::string_view fqn_of(const Item& item) const { return metadata_.entries[item.entry].fqn; }
  Item item(uint32_t number) const;
  bool is_empty_chunk(uint32_t item) const;
  Finding damage(const char* what, std::string_view fqn) const;

  Checkpoint& checkpoint_;
  DcpItems& items_;
  DcpContent& content_;
  const std::string& name_;
  FindingSink& sink_;
  DcpMetadata metadata_;
  std::vector<uint32_t> item_of_value_;       // by entry, for byte items: rows of storage
  std::unordered_map<uint32_t, uint32_t> encoded_;   // chunk: the row that says how
  std::vector<bool> matched_;                 // rows of storage that were given to their chunk
  std::vector<bool> usable_;                  // items whose bytes are there
  std::unordered_map<uint32_t, File> files_;  // by name
  uint32_t last_name_ = kNone;                // and the file that was asked for last
  File* last_file_ = nullptr;
  std::unordered_map<uint32_t, std::vector<uint32_t>> sorted_;   // entry: its chunks by offset, where hints were of no use
  std::unordered_map<uint32_t, uint32_t> same_as_;               // entry: an earlier one with bytes of it
  std::unordered_map<uint32_t, TensorIndex> tensor_of_;          // entries that others are the same as
};

}  // namespace fsdpctl
