// Late segments: what depends on the CRC-32s of a file's data, written when all of that is known.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "lib/ckpt/journal.h"
#include "lib/ckpt/layout.h"
#include "lib/ckpt/output_file.h"

namespace fsdpctl {

// CRC-32s of the tensor segments of one file, added up from contributions in any order. Thread-safe.
class FileCrcs final : public ItemCrcs {
 public:
  explicit FileCrcs(uint64_t items) : size_(items), crcs_(std::make_unique<std::atomic<uint32_t>[]>(items)) {}

  uint64_t size() const { return size_; }
  void add(const ItemPart& part) { crcs_[part.item] ^= part.crc32; }
  uint32_t crc32(uint64_t item) const override { return crcs_[item]; }

 private:
  uint64_t size_;
  std::unique_ptr<std::atomic<uint32_t>[]> crcs_;
};

// Writes the late segments that were not rendered with their blocks (`all_late`: none was), neighbours together. Returns the bytes
// written.
uint64_t write_late_segments(const FileLayout& layout, const FileCrcs& crcs, OutputFile& file, bool all_late = false);

}  // namespace fsdpctl
