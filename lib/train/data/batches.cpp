#include "lib/train/data/batches.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <span>
#include <string>
#include <utility>

#include "lib/base/finding.h"
#include "lib/train/initial_value.h"

namespace fsdpctl::train {

// A Feistel network permutes the numbers of an even number of bits; those beyond `count` are sent through it again.
uint64_t shuffled(uint64_t index, uint64_t count, uint64_t seed) {
  const int half = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      left = std::exchange(right, (left ^ derived_seed(seed, "shuffle", round, right)) & mask);
    }
    index = (left << half) | right;
  } while (index >= count);
  return index;
}

Batches::Batches(std::vector<TokenFile> files, const BatchOptions& options) : files_(std::move(files)), options_(options) {
  const auto length = static_cast<uint64_t>(options_.sequence_length);
  first_sample_.push_back(0);
  for (const TokenFile& file : files_) {
    const uint64_t windows = file.size() > length ? (file.size() - 1) / length : 0;
    first_sample_.push_back(first_sample_.back() + windows);
  }
  if (samples_per_epoch() == 0) {
    throw Error(Exit::usage, "the data is shorter than one sequence")
        .at(files_.empty() ? "" : files_[0].path())
        .saw(std::to_string(length + 1) + " tokens", std::to_string(files_.empty() ? 0 : files_[0].size()));
  }
}

uint64_t Batches::window_of(uint64_t sample) const {
  const uint64_t count = samples_per_epoch(), epoch = sample / count, index = sample % count;
  return options_.shuffle ? shuffled(index, count, derived_seed(options_.seed, "epoch", epoch)) : index;
}

at::Tensor Batches::tokens(uint64_t samples, uint64_t micro_batch) const {
  const int64_t row = options_.sequence_length + 1;
  at::Tensor tokens = at::empty({options_.micro_batch_size, row}, at::TensorOptions().dtype(at::kLong));
  auto* out = tokens.mutable_data_ptr<int64_t>();
  const auto size = static_cast<uint64_t>(options_.micro_batch_size);
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t window = window_of(samples + micro_batch * size + i);
    const auto file = static_cast<size_t>(std::upper_bound(first_sample_.begin(), first_sample_.end(), window) - first_sample_.begin() - 1);
    const uint64_t begin = (window - first_sample_[file]) * static_cast<uint64_t>(options_.sequence_length);
    files_[file].read(begin, std::span(out + i * static_cast<uint64_t>(row), static_cast<size_t>(row)));
  }
  return tokens;
}

}  // namespace fsdpctl::train
