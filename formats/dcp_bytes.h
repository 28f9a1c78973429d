// Byte items of .distcp files: torch.save archives of any Python value, read for the tree when a checkpoint is opened.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/base/value.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct DcpByteItem {
  SourceIndex file = 0;
  int32_t rank = -1;
  uint64_t offset = 0, length = 0;   // inside the file
  bool zstd = false;
  std::string_view fqn;              // for messages
};

// The values of all items, in their order; tensors inside them are added to `checkpoint`. Files are read in big steps.
// Damage goes to `sink`; the value of a damaged item is None.
std::vector<Value> read_byte_items(Checkpoint& checkpoint, const std::vector<DcpByteItem>& items, FindingSink& sink);

// Are the raw bytes of two items the same? (Ranks that saved without collectives each have their own.)
bool same_bytes(const Source& source, const DcpByteItem& a, const DcpByteItem& b);

}  // namespace fsdpctl
