#include "formats/dcp_plan.h"

#include <algorithm>
#include <array>
#include <queue>

namespace fsdpctl {
namespace {

constexpr size_t kMaxDims = 64;
constexpr uint64_t kSmallArchive = 1 << 20;

}  // namespace

DcpPlan::DcpPlan(const Checkpoint& checkpoint, const TargetPlacement& placement)
    : checkpoint_(checkpoint), placement_(placement), state_(checkpoint.tree), ranks_(static_cast<size_t>(placement.world_size())) {
  const std::vector<DcpSavedLeaf>& leaves = state_.leaves();
  next_name_.assign(leaves.size(), kNoDcpName);
  tensor_of_name_.assign(leaves.size(), kNoDcpName);
  std::vector<uint32_t> planned(checkpoint.tensors.size(), kNoDcpName);
  for (uint32_t name = 0; name < leaves.size(); ++name) {
    if (!leaves[name].is_tensor()) {
      add_value(name);
      continue;
    }
    const TensorIndex t = leaves[name].value->as_tensor().index;
    if (planned[t] == kNoDcpName) {
      planned[t] = static_cast<uint32_t>(tensors_.size());
      add_tensor(t, name);
    } else {
      DcpPlannedTensor& tensor = tensors_[planned[t]];
      next_name_[tensor.last_name] = name;
      tensor.last_name = name;
    }
    tensor_of_name_[name] = planned[t];
  }
  give_tensors();
  give_values();
  for (size_t r = 0; r < ranks_.size(); ++r) place_items(ranks_[r], static_cast<int64_t>(r));
}

void DcpPlan::box(const DcpPlannedTensor& tensor, uint32_t chunk, std::span<int64_t> offset, std::span<int64_t> size) const {
  placement_.box(checkpoint_, tensor.tensor, tensor.first_rank + static_cast<int64_t>(chunk), offset, size);
}

uint64_t DcpPlan::item_size(const DcpPlannedTensor& tensor, uint32_t chunk) const {
  const TensorInfo& info = checkpoint_.tensors[tensor.tensor];
  std::array<int64_t, kMaxDims> offset, size;
  const size_t dims = info.shape.size();
  box(tensor, chunk, std::span(offset).first(dims), std::span(size).first(dims));
  const TensorItemFrame frame = frame_tensor_item(info.dtype, Dims(size).first(dims));
  return frame.prefix + frame.data + frame.suffix;
}

void DcpPlan::add_tensor(TensorIndex t, uint32_t name) {
  DcpPlannedTensor tensor;
  tensor.tensor = t;
  tensor.first_name = tensor.last_name = name;
  const TargetPlacement::Row& row = placement_.row(t);
  if (row.dim < 0) {
    tensor.first_rank = row.holder;
    tensor.last = item_size(tensor, 0);
  } else {
    const int64_t extent = checkpoint_.tensors[t].shape[static_cast<size_t>(row.dim)];
    const int64_t each = chunk_extent(extent, world_size(), 0).second;
    tensor.filled = each == 0 ? 0 : static_cast<uint32_t>((extent + each - 1) / each);
    tensor.chunks = static_cast<uint32_t>(std::min<int64_t>(world_size(), int64_t{tensor.filled} + 1));
    if (tensor.filled > 1) tensor.full = item_size(tensor, 0);
    if (tensor.filled > 0) tensor.last = item_size(tensor, tensor.filled - 1);
    if (tensor.chunks > tensor.filled) tensor.empty = item_size(tensor, tensor.filled);
  }
  tensors_.push_back(tensor);
}

TorchArchiveLayout DcpPlan::make_archive(const DcpPlannedValue& value) const {
  return TorchArchiveLayout(checkpoint_, *state_.leaves()[value.name].value, "archive");
}

void DcpPlan::add_value(uint32_t name) {
  DcpPlannedValue value;
  value.name = name;
  TorchArchiveLayout archive = make_archive(value);
  value.size = archive.size();
  if (archive.item_count() > 2 || value.size > kSmallArchive) value.archive = std::make_unique<TorchArchiveLayout>(std::move(archive));
  values_.push_back(std::move(value));
}

void DcpPlan::give_tensors() {
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    for (uint32_t c = 0; c < tensors_[t].chunks; ++c) ranks_[static_cast<size_t>(tensors_[t].first_rank) + c].tensors.push_back(t);
  }
}

// Each value goes to the rank with the fewest bytes so far, the lowest of these.
void DcpPlan::give_values() {
  using Load = std::pair<uint64_t, size_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    uint64_t bytes = 0;
    for (uint32_t t : ranks_[r].tensors) bytes += tensors_[t].item_size(static_cast<uint32_t>(r) - static_cast<uint32_t>(tensors_[t].first_rank));
    loads.emplace(bytes, r);
  }
  for (uint32_t v = 0; v < values_.size(); ++v) {
    const auto [bytes, r] = loads.top();
    loads.pop();
    ranks_[r].values.push_back(v);
    loads.emplace(bytes + values_[v].size, r);
  }
}

void DcpPlan::place_items(Rank& rank, int64_t number) const {
  rank.offsets.reserve(rank.values.size() + rank.tensors.size() + 1);
  uint64_t at = 0;
  for (uint32_t v : rank.values) {
    rank.offsets.push_back(at);
    at += values_[v].size;
  }
  for (uint32_t t : rank.tensors) {
    rank.offsets.push_back(at);
    at += tensors_[t].item_size(static_cast<uint32_t>(number - tensors_[t].first_rank));
  }
  rank.offsets.push_back(at);
}

}  // namespace fsdpctl
