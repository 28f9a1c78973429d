// Batches of token windows, in an order that a seed and a position say all of: any rank can make any micro-batch, nothing
// but the number of samples used so far need be saved, and the world size does not matter.
//
// A sample is a window of sequence_length + 1 tokens of one file: inputs, and the same moved by one. Windows begin every
// sequence_length tokens; what is left of a file after the last whole one is not used. An epoch uses each window once.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/train/data/token_file.h"

namespace at {
class Tensor;
}

namespace fsdpctl::train {

struct BatchOptions {
  int64_t sequence_length = 128;
  int64_t micro_batch_size = 1;      // samples
  bool shuffle = true;               // anew in each epoch
  uint64_t seed = 0;
};

class Batches {
 public:
  // Error(usage) where the files are too short for a single window.
  Batches(std::vector<TokenFile> files, const BatchOptions& options);

  uint64_t samples_per_epoch() const { return first_sample_.back(); }

  // Of `micro_batch`, counted among those of all ranks, when `samples` were used before the step: int64
  // [micro_batch_size, sequence_length + 1].
  at::Tensor tokens(uint64_t samples, uint64_t micro_batch) const;

 private:
  uint64_t window_of(uint64_t sample) const;

  std::vector<TokenFile> files_;
  BatchOptions options_;
  std::vector<uint64_t> first_sample_;   // of each file, and the number of all
};

// Where `index` goes when the numbers below `count` are shuffled by `seed`: without memory, each by itself.
uint64_t shuffled(uint64_t index, uint64_t count, uint64_t seed);

}  // namespace fsdpctl::train
