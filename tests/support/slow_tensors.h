// A checkpoint's tensors as expected.json describes them, read the slow way.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/support/slow_reference.h"

namespace fsdpctl {

// {"name": {"dtype", "shape", "sha256"}}; tied names are left out.
inline nlohmann::json slow_tensors(const Checkpoint& checkpoint) {
  nlohmann::json all = nlohmann::json::object();
  for (TensorIndex t = 0; t < checkpoint.tensors.size(); ++t) {
    const TensorInfo& info = checkpoint.tensors[t];
    all[std::string(info.key)] = {{"dtype", dtype_name(info.dtype)},
                                  {"shape", std::vector<int64_t>(info.shape.begin(), info.shape.end())},
                                  {"sha256", slow_sha256(checkpoint, t)}};
  }
  return all;
}

}  // namespace fsdpctl
