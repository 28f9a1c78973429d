// Random checkpoints for property tests: a model, optimizer state and other state, nested, tied, and placed as FSDP1, FSDP2,
// FSDP + TP and plain saves place them. Everything follows from the seed.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/support/made_checkpoint.h"
#include "tests/support/written_checkpoint.h"

namespace fsdpctl {

struct RandomCheckpointOptions {
  bool model_only = false;
  bool safetensors_dtypes = false;    // only those that safetensors has
};

class RandomCheckpoint {
 public:
  RandomCheckpoint(uint64_t seed, RandomCheckpointOptions options);

  const Checkpoint& checkpoint() const { return made_.checkpoint; }   // finished
  bool integer_keys() const { return integer_keys_; }                  // a mapping has keys that are no strings
  Random& random() { return made_.random; }

 private:
  struct Parameter {
    std::string fqn;
    WrittenTensor tensor;
  };
  int64_t below(int64_t limit) { return static_cast<int64_t>(made_.random() % static_cast<uint64_t>(limit)); }
  bool one_in(int64_t n) { return below(n) == 0; }
  bool fresh(const std::string& path) { return paths_.insert(path).second; }
  std::vector<int64_t> shape();
  DType dtype();
  WrittenTensor tensor();
  void place(WrittenTensor& tensor);
  Value add(WrittenTensor wanted);

  Value model();
  Value optimizer();
  Value nested_optimizer();
  Value flattened_optimizer();
  Value field(const Parameter& parameter, const std::string& name);
  MadeEntries hyperparameters();
  // `whole`: in a tuple, which DCP stores as one value; nothing else may be tied to it.
  Value extra(const std::string& path, int depth, bool whole = false);
  Value leaf();

  WrittenCheckpoint made_;
  RandomCheckpointOptions options_;
  Cut style_ = Cut::whole;
  int world_size_ = 1;
  bool integer_keys_ = false;
  std::vector<Parameter> parameters_;
  std::vector<Value> tensors_;              // of the model, for ties
  std::set<std::string> paths_;             // so that no two leaves have one name
};

}  // namespace fsdpctl
