// Checkpoints made by hand, for tests of what happens between opening and writing: a tree and a catalog without files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct MadePiece {
  std::vector<int64_t> offset, size;
  int rank = 0;
};

// Fills a catalog in the order of the calls; the caller puts the values that it returns into a tree.
class MadeCheckpoint {
 public:
  Checkpoint checkpoint;

  Value tensor(const std::string& key, std::vector<int64_t> shape, DType dtype = DType::float32);   // whole, on rank 0
  Value tensor(const std::string& key, std::vector<int64_t> shape, const std::vector<MadePiece>& pieces, DType dtype = DType::float32);
  // Cut along `dim` by torch.chunk.
  Value shard(const std::string& key, std::vector<int64_t> shape, int64_t world_size, size_t dim = 0, DType dtype = DType::float32);

  // Writes all pieces into `directory`/made.bin, one after another, makes that the source and finishes the checkpoint. Element i of
  // tensor t holds the low bytes of made_element(t, i).
  void store(const std::string& directory);
};

uint64_t made_element(TensorIndex tensor, uint64_t index);

using MadeEntries = std::vector<std::pair<std::string, Value>>;
Value dict(const MadeEntries& entries);
Value list(std::vector<Value> items);
Value names(const std::vector<std::string>& texts);   // a list of strings

}  // namespace fsdpctl
