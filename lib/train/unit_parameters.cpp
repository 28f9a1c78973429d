#include "lib/train/unit_parameters.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lib/base/cast.h"
#include "lib/base/finding.h"
#include "lib/train/torch_types.h"

namespace fsdpctl::train {
namespace {

constexpr uint64_t kChunk = 64 << 10;        // elements that are made at a time
constexpr uint64_t kFlatAlignment = 16;      // bytes, as FSDP1

std::byte* bytes_of_block(MemoryBlock& block) { return static_cast<std::byte*>(block.mutable_data()); }

ShardLayout lay_out(const Runtime& runtime, const std::vector<NamedParameter>& parameters, DType dtype) {
  std::vector<Shape> shapes;
  for (const NamedParameter& p : parameters) shapes.push_back(p.slot->shape);
  return runtime.placement == ShardPlacement::flat ? flat_layout(shapes, runtime.mesh.shards(), kFlatAlignment / item_size(dtype))
                                                   : per_parameter_layout(shapes, runtime.mesh.shards());
}

}  // namespace

UnitParameters::UnitParameters(Runtime& runtime, std::string unit, std::vector<NamedParameter> parameters, DType dtype)
    : runtime_(runtime),
      unit_(std::move(unit)),
      parameters_(std::move(parameters)),
      dtype_(dtype),
      layout_(lay_out(runtime, parameters_, dtype)),
      in_place_(runtime.mesh.shards() == 1 && layout_.gathered_is_full && !runtime.offload) {
  const Place home = runtime.offload ? Place::pinned : Place::device;
  local_ = runtime.memory.allocate(home, bytes_of(layout_.shard_count), unit_, "parameters");
  if (local_.bytes() > 0) std::memset(local_.mutable_data(), 0, local_.bytes());   // padding stays so
  fill_slots();
}

UnitParameters::~UnitParameters() {
  for (const NamedParameter& p : parameters_) p.slot->value.reset();
}

void UnitParameters::fill_slots() {
  const uint64_t bytes = bytes_of(layout_.full_count);
  storage_ = c10::Storage(c10::Storage::use_byte_size_t{}, static_cast<int64_t>(bytes), at::DataPtr(nullptr, at::kCPU), nullptr,
                          /*resizable=*/false);
  // All views are made while the storage has its size: later ones would be out of its bounds.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& slot = *parameters_[i].slot;
    std::vector<int64_t> strides(slot.shape.size(), 1);
    for (size_t d = slot.shape.size(); d-- > 1;) strides[d - 1] = strides[d] * slot.shape[d];
    slot.value = at::empty({0}, at::TensorOptions().dtype(scalar_type(dtype_)));
    slot.value.set_(storage_, static_cast<int64_t>(layout_.full_offset[i]), slot.shape, strides);
    slot.value.set_requires_grad(slot.trainable);
  }
  in_place_ ? put_under(local_.mutable_data(), bytes) : put_under(nullptr, 0);
}

// The storage does not own the memory.
void UnitParameters::put_under(void* memory, uint64_t bytes) {
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(memory, at::kCPU));
  storage->set_nbytes(bytes);
}

bool UnitParameters::any_trainable() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const NamedParameter& p) { return p.slot->trainable; });
}

void UnitParameters::set_values(const ParameterValues& values) {
  if (users_ > 0) throw Error(Exit::failed, "parameters are set while they are in use").key(unit_);
  drop_unused();
  const bool cast_needed = dtype_ != DType::float32;
  if (cast_needed) {
    initial_ = runtime_.memory.allocate(Place::host, layout_.shard_count * sizeof(float), unit_, "first values");
    initial_taken_.assign(parameters_.size(), false);
  }
  std::vector<float> chunk;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ShardRun& run = runs()[i];
    for (uint64_t done = 0; done < run.count; done += chunk.size()) {
      chunk.resize(std::min(kChunk, run.count - done));
      values(parameters_[i], run.begin + done, chunk);
      const uint64_t at = run.shard_offset + done;
      const std::span<std::byte> target(bytes_of_block(local_) + bytes_of(at), bytes_of(chunk.size()));
      if (cast_needed) {
        cast(DType::float32, dtype_, std::as_bytes(std::span(chunk)), target);
        std::memcpy(bytes_of_block(initial_) + at * sizeof(float), chunk.data(), chunk.size() * sizeof(float));
      } else {
        std::memcpy(target.data(), chunk.data(), target.size());
      }
    }
  }
}

at::Tensor UnitParameters::local(size_t parameter) {
  const ShardRun& run = runs()[parameter];
  if (run.count == 0) return tensor_over(nullptr, 0, dtype_);
  return tensor_over(bytes_of_block(local_) + bytes_of(run.shard_offset), run.count, dtype_);
}

at::Tensor UnitParameters::take_initial_master(size_t parameter) {
  if (!initial_) return {};
  const ShardRun& run = runs()[parameter];
  if (initial_taken_[parameter]) return {};
  at::Tensor master = at::empty({static_cast<int64_t>(run.count)}, at::TensorOptions().dtype(at::kFloat));
  if (run.count > 0) {
    std::memcpy(master.mutable_data_ptr(), bytes_of_block(initial_) + run.shard_offset * sizeof(float), run.count * sizeof(float));
  }
  initial_taken_[parameter] = true;
  if (std::find(initial_taken_.begin(), initial_taken_.end(), false) == initial_taken_.end()) initial_.reset();
  return master;
}

void UnitParameters::start_copy() {
  if (!runtime_.offload || runtime_.mesh.shards() == 1 || layout_.full_count == 0 || state_ != State::sharded || staged_) return;
  const uint64_t bytes = bytes_of(layout_.shard_count);
  staged_ = runtime_.memory.allocate(Place::device, bytes, unit_, "shard to be gathered");
  to_device_ = runtime_.memory.copy(staged_, 0, local_, 0, bytes);
}

void UnitParameters::finish_copy() {
  if (!to_device_) return;
  to_device_.wait();
  to_device_ = Copy();
}

void UnitParameters::prefetch() {
  if (runtime_.offload && runtime_.mesh.shards() > 1 && state_ == State::sharded && !staged_) {
    start_copy();
  } else {
    start_gather();
  }
}

void UnitParameters::start_gather() {
  if (in_place_ || layout_.full_count == 0 || state_ != State::sharded) return;
  const Mesh& mesh = runtime_.mesh;
  start_copy();
  full_ = runtime_.memory.allocate(Place::device, bytes_of(layout_.full_count), unit_, "gathered parameters");
  if (!layout_.gathered_is_full) {
    gathered_ = runtime_.memory.allocate(Place::device, bytes_of(layout_.gathered_count()), unit_, "parameters of each rank");
  }
  MemoryBlock& target = layout_.gathered_is_full ? full_ : gathered_;
  if (mesh.shards() == 1) {   // and offload: else the shard is in place
    to_device_ = runtime_.memory.copy(target, 0, local_, 0, bytes_of(layout_.shard_count));
  } else {
    finish_copy();
    const void* shard = staged_ ? staged_.data() : local_.data();
    gather_ = mesh.shard->start_all_gather({dtype_, shard, layout_.shard_count},
                                           {dtype_, target.mutable_data(), layout_.gathered_count()}, unit_);
  }
  state_ = State::gathering;
}

void UnitParameters::finish_gather() {
  finish_copy();
  if (gather_ != nullptr) std::exchange(gather_, nullptr)->wait();
  if (!layout_.gathered_is_full) {
    for (const ShardRun& run : layout_.runs) {
      if (run.count == 0) continue;
      const uint64_t from = static_cast<uint64_t>(run.rank) * layout_.shard_count + run.shard_offset;
      std::memcpy(bytes_of_block(full_) + bytes_of(layout_.full_offset[run.parameter] + run.begin),
                  bytes_of_block(gathered_) + bytes_of(from), bytes_of(run.count));
    }
    gathered_.reset();
  }
  staged_.reset();
  put_under(full_.mutable_data(), full_.bytes());
  state_ = State::gathered;
}

void UnitParameters::acquire() {
  if (users_++ > 0 || in_place_ || layout_.full_count == 0) return;
  try {
    start_gather();
    if (state_ == State::gathering) finish_gather();
  } catch (...) {
    --users_;
    throw;
  }
}

void UnitParameters::release() noexcept {
  if (--users_ > 0 || state_ != State::gathered) return;
  put_under(nullptr, 0);
  full_.reset();
  state_ = State::sharded;
}

void UnitParameters::drop_unused() {
  if (users_ > 0) return;
  if (state_ == State::sharded) {
    finish_copy();
    staged_.reset();
    return;
  }
  if (state_ == State::gathering) finish_gather();
  ++users_;
  release();
}

}  // namespace fsdpctl::train
