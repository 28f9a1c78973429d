// An optimizer's state dict: the tree that Python would have, and its tensors beside it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/base/value.h"

namespace fsdpctl::train {

// Contiguous and shared; never changed once it is in a dict. The device must be able to read it (host memory for the CPU).
struct StateTensor {
  DType dtype = DType::float32;
  std::vector<int64_t> shape;
  std::shared_ptr<const void> data;

  uint64_t count() const;
};

template <class T>
StateTensor make_state_tensor(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  auto copy = std::make_shared<std::vector<T>>(values);
  return {dtype, std::move(shape), std::shared_ptr<const void>(copy, copy->data())};
}

struct StateDict {
  Value tree;                          // a leaf's index is one into `tensors`
  std::vector<StateTensor> tensors;

  Value add(StateTensor tensor);       // as a leaf
};

// Which part of a dict somebody looked for and where: `path` for messages ("base_optim_states.state.3"). Error(damaged)
// when it is not there or is of another kind.
const Value& require(const Value& mapping, std::string_view key, Kind kind, const std::string& path);
const Value& require_mapping(const Value& mapping, std::string_view key, const std::string& path);
double require_number(const Value& mapping, std::string_view key, const std::string& path);   // integers too

}  // namespace fsdpctl::train
