#include "lib/train/parameter_shard.h"

#include <ATen/core/Tensor.h>

namespace fsdpctl::train {

std::vector<int64_t> local_shape(const ShardInfo& info) {
  const auto count = static_cast<int64_t>(info.count());
  if (info.placement == ShardPlacement::flat) return {count};
  if (info.shape.empty()) return count == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{0};
  std::vector<int64_t> shape = info.shape;
  int64_t row = 1;
  for (size_t d = 1; d < shape.size(); ++d) row *= shape[d];
  shape[0] = row == 0 ? 0 : count / row;
  return shape;
}

at::Tensor ParameterShard::initial_master() const { return {}; }

bool ParameterShard::has_gradient() const { return gradient().defined(); }

void ShardedModel::backward(const at::Tensor& loss, bool retain_graph) { loss.backward({}, retain_graph); }

}  // namespace fsdpctl::train
