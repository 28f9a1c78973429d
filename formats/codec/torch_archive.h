// A torch.save archive: tree, tensors and storages in one ZIP. Shared by `.pt` files and the items of `.distcp`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/codec/zip.h"
#include "lib/base/checksum.h"
#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

// Reads the archive at [offset, offset + length) of a source file: adds its tensors and pieces to `checkpoint`
// (rank as given) and returns its object. Deflated storages become items that checkpoint.resolver decodes; a
// caller with a resolver of its own sets it before: then they are refused.
struct TorchArchiveFacts {
  std::string prefix;            // "archive"
  std::string written_by;        // "torch 2.7 or newer", from the members it has
  uint64_t storages = 0;
  bool big_endian = false;
  uint64_t deflated = 0;         // storages that are compressed
};
Value read_torch_archive(Checkpoint& checkpoint, SourceIndex source, uint64_t offset, uint64_t length, int rank,
                         FindingSink& sink, TorchArchiveFacts* facts = nullptr);

// Only for an archive that holds one bare tensor (a DCP tensor item): where its bytes are, without touching a
// checkpoint.
struct TensorItem {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;      // elements; empty: row-major
  uint64_t data_offset = 0;          // of the first element, from the item's start
  uint64_t data_length = 0;          // bytes from there that the tensor uses
  bool swap = false, conj = false, neg = false;
  bool has_crc32 = false;            // of [data_offset, data_offset + data_length)
  uint32_t crc32 = 0;
};
// What is worth reading ahead: with the first kItemHead and the last kItemTail bytes at hand, `read` is not needed
// for items as PyTorch writes them.
inline constexpr uint64_t kItemHead = 1024;
inline constexpr uint64_t kItemTail = 2048;
// `head` begins at the item's start, `tail` ends at its end; they may be the same buffer or empty. `read` serves the
// rest of the item (offsets from its start). About 1 us for items as PyTorch and fsdpctl write them.
TensorItem read_tensor_item(Bytes head, Bytes tail, uint64_t length, const ZipRead& read, const std::string& name,
                            uint64_t base);

// ---- writing

// An archive laid out as layout items: one for data.pkl and the small members before the storages, one for each
// storage (header, tensor segment, late descriptor), one for what follows them. Offsets are relative to the archive.
// Immutable and thread-safe; holds the pickle and 12 bytes for each tensor, and refers to the checkpoint.
class TorchArchiveLayout {
 public:
  // `tree`'s tensors (whole: TensorInfo::shape) become storages; aliases share one. `prefix` is the archive name.
  TorchArchiveLayout(const Checkpoint& checkpoint, const Value& tree, std::string prefix);
  uint64_t size() const;
  uint64_t item_count() const;
  uint64_t item_offset(uint64_t item) const;
  void segments(uint64_t item, SegmentList& out) const;
  void render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const;
  ~TorchArchiveLayout();
  TorchArchiveLayout(TorchArchiveLayout&&) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The archive's name in a file of this name, as PyTorch chooses it: "ckpt.step10" for "ckpt.step10.pt".
std::string torch_archive_prefix(std::string_view file_name);

// The framing of a DCP tensor item: a bare contiguous tensor of `dtype` and `shape`. Prefix and suffix are rendered
// around `data` bytes; sizes depend only on the arguments. Cheap: called once per piece.
struct TensorItemFrame {
  uint64_t prefix = 0;    // bytes before the data (multiple of 64)
  uint64_t data = 0;
  uint64_t suffix = 0;    // bytes after the data
};
TensorItemFrame frame_tensor_item(DType dtype, Dims shape);
void write_tensor_item_prefix(DType dtype, Dims shape, std::string& out);
void write_tensor_item_suffix(DType dtype, Dims shape, uint32_t crc32, std::string& out);

}  // namespace fsdpctl
