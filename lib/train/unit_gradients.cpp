#include "lib/train/unit_gradients.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/train/torch_types.h"

namespace fsdpctl::train {
namespace {

bool has_gaps(const ShardLayout& layout) {
  uint64_t used = 0;
  for (const ShardRun& run : layout.runs) used += run.count;
  return used != layout.gathered_count();
}

// `count` elements at `offset` of a block of `dtype`, as a tensor of `like`'s shape.
at::Tensor part_of(MemoryBlock& block, DType dtype, uint64_t offset, const at::Tensor& like) {
  auto* memory = static_cast<std::byte*>(block.mutable_data()) + offset * item_size(dtype);
  return tensor_over(memory, static_cast<uint64_t>(like.numel()), dtype).view(like.sizes());
}

// Calls body(offset in the gathered form, part of the gradient) for parts that cover it.
template <class Body>
void for_gathered_parts(const ShardLayout& layout, size_t parameter, const at::Tensor& gradient, Body body) {
  if (layout.gathered_is_full) {
    body(layout.full_offset[parameter], gradient);
    return;
  }
  const at::Tensor flat = gradient.reshape({-1});
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const ShardRun& run = layout.runs_of(rank)[parameter];
    if (run.count == 0) continue;
    body(static_cast<uint64_t>(rank) * layout.shard_count + run.shard_offset,
         flat.narrow(0, static_cast<int64_t>(run.begin), static_cast<int64_t>(run.count)));
  }
}

}  // namespace

UnitGradients::UnitGradients(Runtime& runtime, const UnitParameters& parameters, DType reduce_dtype)
    : runtime_(runtime),
      parameters_(parameters),
      layout_(parameters.layout()),
      reduce_dtype_(reduce_dtype),
      has_padding_(has_gaps(layout_)),
      parts_(parameters.all().size()) {}

UnitGradients::~UnitGradients() {
  if (runtime_.reducing == this) runtime_.reducing = nullptr;
}

bool UnitGradients::sums_alone() const { return runtime_.mesh.ranks() == 1 && !runtime_.offload; }

void UnitGradients::accept(const Tensors& gradients) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i].given |= gradients[i].defined();
  accepted_ = true;
  if (sums_alone()) {
    add_here(gradients);
  } else if (!runtime_.synchronises) {
    add_unsynced(gradients);
  } else {
    start_reduction(gradients);
  }
}

MemoryBlock UnitGradients::allocate(Place place, uint64_t count, DType dtype, std::string_view use) {
  return runtime_.memory.allocate(place, count * item_size(dtype), parameters_.unit(), use);
}

MemoryBlock& UnitGradients::home() {
  if (!home_) home_ = allocate(runtime_.offload ? Place::pinned : Place::device, layout_.shard_count, DType::float32, "gradients");
  return home_;
}

// As it is after a reduction: of the reduction's dtype, but not wider than it was.
at::Tensor UnitGradients::rounded(const at::Tensor& gradient) const {
  return reduce_dtype_ == DType::float32 ? gradient : gradient.to(scalar_type(reduce_dtype_));
}

void UnitGradients::add_here(const Tensors& gradients) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!gradients[i].defined() || gradients[i].numel() == 0) continue;
    const at::Tensor sum = part_of(home(), DType::float32, parameters_.runs()[i].shard_offset, gradients[i]);
    parts_[i].summed ? sum.add_(rounded(gradients[i])) : sum.copy_(rounded(gradients[i]));
    parts_[i].summed = true;
  }
}

void UnitGradients::add_unsynced(const Tensors& gradients) {
  if (!unsynced_) unsynced_ = allocate(Place::device, layout_.full_count, DType::float32, "unsynchronised gradients");
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor sum = part_of(unsynced_, DType::float32, layout_.full_offset[i], gradients[i]);
    parts_[i].unsynced ? sum.add_(gradients[i]) : sum.copy_(gradients[i]);
    parts_[i].unsynced = true;
  }
}

// `last` and what was accepted without synchronisation; views of unsynced_.
Tensors UnitGradients::take_unsynced(const Tensors& last) {
  if (!unsynced_) return last;
  add_unsynced(last);
  Tensors sums(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].unsynced) continue;
    const at::Tensor& like = parameters_.all()[i].slot->value;   // its shape; it may have no memory
    sums[i] = part_of(unsynced_, DType::float32, layout_.full_offset[i], like);
    parts_[i].unsynced = false;
  }
  return sums;
}

// Zeros where there is no gradient.
void UnitGradients::write(const Tensors& gradients, MemoryBlock& target, DType dtype) {
  bool complete = !has_padding_;
  for (size_t i = 0; i < parts_.size(); ++i) complete &= gradients[i].defined();
  if (!complete) std::memset(target.mutable_data(), 0, target.bytes());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!gradients[i].defined()) continue;
    for_gathered_parts(layout_, i, gradients[i], [&](uint64_t offset, const at::Tensor& part) {
      part_of(target, dtype, offset, part).copy_(part);
    });
  }
}

void UnitGradients::start_reduction(const Tensors& gradients) {
  complete();   // of a unit that was used twice
  buffer_ = allocate(Place::device, layout_.gathered_count(), reduce_dtype_, "gradients of all parameters");
  write(take_unsynced(gradients), buffer_, reduce_dtype_);
  unsynced_.reset();
  if (runtime_.mesh.shards() > 1) {
    reduced_ = allocate(Place::device, layout_.shard_count, DType::float32, "reduced gradients");
    pending_ = runtime_.mesh.shard->start_reduce_scatter({reduce_dtype_, buffer_.data(), layout_.gathered_count()},
                                                         {DType::float32, reduced_.mutable_data(), layout_.shard_count},
                                                         parameters_.unit());
  } else if (reduce_dtype_ == DType::float32) {
    reduced_ = std::move(buffer_);
  } else {
    reduced_ = allocate(Place::device, layout_.shard_count, DType::float32, "reduced gradients");
    tensor_over(reduced_.mutable_data(), layout_.shard_count, DType::float32)
        .copy_(tensor_over(buffer_.mutable_data(), layout_.shard_count, reduce_dtype_));
  }
  runtime_.reducing = this;
}

void UnitGradients::complete() {
  if (!reduced_) return;
  if (runtime_.reducing == this) runtime_.reducing = nullptr;
  if (pending_ != nullptr) std::exchange(pending_, nullptr)->wait();
  buffer_.reset();
  MemoryBlock reduced = std::move(reduced_);
  if (runtime_.mesh.replicas() > 1) {
    runtime_.mesh.replicate->all_reduce({DType::float32, reduced.mutable_data(), layout_.shard_count}, Reduction::sum,
                                        parameters_.unit());
  }
  if (runtime_.offload) {
    send_to_host(std::move(reduced));
  } else {
    fold(static_cast<const float*>(reduced.data()));
  }
}

// Device memory of what is sent lives until finish_pass().
void UnitGradients::send_to_host(MemoryBlock reduced) {
  Outgoing outgoing;
  outgoing.device = std::move(reduced);
  const bool first = outgoing_.empty() && std::none_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.summed; });
  if (!first) outgoing.host = allocate(Place::pinned, layout_.shard_count, DType::float32, "incoming gradients");
  outgoing.copy = runtime_.memory.copy(first ? home() : outgoing.host, 0, outgoing.device, 0, outgoing.device.bytes());
  outgoing_.push_back(std::move(outgoing));
}

void UnitGradients::finish_pass() {
  for (Outgoing& outgoing : outgoing_) {
    outgoing.copy.wait();
    if (outgoing.host) {
      fold(static_cast<const float*>(outgoing.host.data()));
    } else {
      for (size_t i = 0; i < parts_.size(); ++i) parts_[i].summed = parameters_.all()[i].slot->trainable;
    }
  }
  outgoing_.clear();
}

void UnitGradients::fold(const float* reduced) {
  auto* sums = static_cast<float*>(home().mutable_data());
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parameters_.all()[i].slot->trainable) continue;
    const ShardRun& run = parameters_.runs()[i];
    float* sum = sums + run.shard_offset;
    const float* more = reduced + run.shard_offset;
    if (parts_[i].summed) {
      for (uint64_t e = 0; e < run.count; ++e) sum[e] += more[e];
    } else if (run.count > 0) {
      std::memcpy(sum, more, run.count * sizeof(float));
    }
    parts_[i].summed = true;
  }
}

at::Tensor UnitGradients::gradient(size_t parameter) {
  if (!parts_[parameter].summed) return {};
  const ShardRun& run = parameters_.runs()[parameter];
  if (run.count == 0) return tensor_over(nullptr, 0, DType::float32);
  return tensor_over(static_cast<float*>(home().mutable_data()) + run.shard_offset, run.count, DType::float32);
}

void UnitGradients::divide(float divisor) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].summed) continue;
    const ShardRun& run = parameters_.runs()[i];
    if (run.count == 0) continue;
    float* sum = static_cast<float*>(home().mutable_data()) + run.shard_offset;
    for (uint64_t e = 0; e < run.count; ++e) sum[e] /= divisor;
  }
}

}  // namespace fsdpctl::train
