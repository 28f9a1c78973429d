// What a checkpoint holds, read element by element, in a form that does not depend on format or placement.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

struct SlowContent {
  struct Tensor {
    DType dtype = DType::float32;
    std::vector<int64_t> shape;
    std::string bytes;
    std::string first;                          // of its names, in byte order: says what is tied
  };
  std::map<std::string, Tensor> tensors;        // under every name
  std::map<std::string, std::string> values;    // path -> canonical JSON
  std::string tree;                             // all of it; tensors by the rank of their first name
};

SlowContent slow_content(const Checkpoint& checkpoint);   // pieces must be raw
// Empty when equal; else the first differences, a line each. `trees`: order and kinds of containers count too.
std::string compare_content(const SlowContent& expected, const SlowContent& got, bool trees);

}  // namespace fsdpctl
