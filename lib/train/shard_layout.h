// How the parameters of a unit are cut over ranks: pure arithmetic, the one thing in which flat and per-parameter sharding
// differ.
//
// Every rank holds a shard of the same number of elements, padding included. All shards in rank order are the gathered
// form, which is what collectives move; the full form is what parameters are views of. A run says where a stretch
// of one parameter lies in a shard. Counts are elements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdpctl::train {

using Shape = std::vector<int64_t>;
uint64_t element_count(const Shape& shape);   // 1 for []

struct ShardRun {
  int rank;
  uint32_t parameter;
  uint64_t begin;        // in the parameter's row-major order
  uint64_t count;        // 0 where the rank holds nothing of it
  uint64_t shard_offset;
};

struct ShardLayout {
  int ranks = 1;
  uint64_t shard_count = 0;             // of each rank
  uint64_t full_count = 0;
  std::vector<uint64_t> full_offset;    // of each parameter
  std::vector<ShardRun> runs;           // one for each rank and parameter, in this order
  // The gathered form is the full form: nothing needs to be copied from one to the other.
  bool gathered_is_full = false;

  std::span<const ShardRun> runs_of(int rank) const;
  uint64_t gathered_count() const { return shard_count * static_cast<uint64_t>(ranks); }
};

// FSDP1: parameters laid end to end, each beginning at a multiple of `alignment` elements (there 16 bytes of the dtype that is
// gathered), padded to a multiple of `ranks`, and cut into equal parts.
ShardLayout flat_layout(std::span<const Shape> shapes, int ranks, uint64_t alignment);

// FSDP2: each parameter is cut along its first dimension as torch.chunk does; the first ranks have the rows, padded to what the
// first one has. A parameter of no dimensions counts as one row.
ShardLayout per_parameter_layout(std::span<const Shape> shapes, int ranks);

}  // namespace fsdpctl::train
