// A `.metadata` as Python's picklers write it: every object in the memo, whatever the protocol, and shared where it is shared.
#pragma once

#include <cstdint>
#include <string>

namespace fsdpctl {

struct PythonMetadata {
  int protocol = 4;              // 2 to 5
  int64_t tensors = 1, ranks = 1;      // row shards, one item on each rank
  int64_t rows = 2, columns = 256;     // of a shard
  uint64_t item_bytes = 4096;
  // One process that saves alone has one object where several ranks have copies.
  bool shared_sizes = false;     // the offset of a chunk is that of its item
  bool shared_properties = false;
  bool shared_chunk_sizes = false;     // all chunks of a tensor have one size
};

std::string python_metadata(const PythonMetadata& what);

}  // namespace fsdpctl
