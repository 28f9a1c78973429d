// A file layout for tests of the engine: for each tensor box a header, its bytes, a checksum; then a directory of all
// checksums. Knows what the file must hold in the end, by the slowest way.
#pragma once

#include <string>
#include <vector>

#include "lib/ckpt/layout.h"
#include "tests/support/written_checkpoint.h"

namespace fsdpctl {

struct TestItem {
  TensorIndex tensor = kNoTensor;
  Box box;
  uint64_t header = 0;         // bytes of rendered text before the tensor
  uint64_t zeros = 0;          // then zeros
};

class TestLayout final : public FileLayout {
 public:
  TestLayout(const WrittenCheckpoint& made, std::string path, std::vector<TestItem> items, bool checksums);

  uint64_t size() const override { return offsets_.back(); }
  uint64_t item_count() const override { return items_.size() + 1; }   // the last one is the directory
  uint64_t item_offset(uint64_t item) const override { return offsets_[item]; }
  void segments(uint64_t item, SegmentList& out) const override;
  void render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const override;
  bool needs_crc32() const override { return checksums_; }

  std::string expected() const;

 private:
  uint64_t tensor_bytes(const TestItem& item) const;
  const WrittenCheckpoint& made_;
  std::vector<TestItem> items_;
  bool checksums_;
  std::vector<uint64_t> offsets_;
};

// Files of a random plan: every tensor once, some cut into rows that go to different files.
std::vector<std::unique_ptr<TestLayout>> random_layouts(WrittenCheckpoint& made, int files, bool checksums);

}  // namespace fsdpctl
