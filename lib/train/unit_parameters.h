// The parameters of a unit: a shard on this rank, and, while somebody uses them, all of them gathered from the ranks.
//
// The slots of modules are filled once with views of one storage. Gathering puts memory under it, releasing takes the memory
// away; views, also those that autograd saved, stay what they are.
#pragma once

#include <c10/core/Storage.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/train/runtime.h"
#include "lib/train/shard_layout.h"

namespace fsdpctl::train {

// Gives elements [begin, begin + out.size()) of a parameter's row-major order.
using ParameterValues = std::function<void(const NamedParameter& parameter, uint64_t begin, std::span<float> out)>;

class UnitParameters {
 public:
  UnitParameters(Runtime& runtime, std::string unit, std::vector<NamedParameter> parameters, DType dtype);
  ~UnitParameters();
  UnitParameters(const UnitParameters&) = delete;
  UnitParameters& operator=(const UnitParameters&) = delete;

  const std::string& unit() const { return unit_; }
  const std::vector<NamedParameter>& all() const { return parameters_; }
  const ShardLayout& layout() const { return layout_; }
  std::span<const ShardRun> runs() const { return layout_.runs_of(runtime_.mesh.shard_rank()); }   // this rank's
  bool any_trainable() const;

  void set_values(const ParameterValues& values);
  at::Tensor local(size_t parameter);            // this rank's part, in the unit's dtype
  // Its first value in float32, given out once; undefined where local() is float32 itself, or when it is gone.
  at::Tensor take_initial_master(size_t parameter);

  // With offload and other ranks: begins to copy the shard to the device, unless that is done already.
  void start_copy();
  // Begins to gather, unless it is done already. Ranks do this in the same order. Waits for the shard's copy.
  void start_gather();
  void prefetch();         // start_gather(), or, where the shard's copy was not begun earlier, that alone
  void acquire();          // the slots can be read until release(); nests
  void release() noexcept;
  void drop_unused();      // what was gathered and acquired by nobody
  bool gathered() const { return state_ == State::gathered; }

 private:
  enum class State : uint8_t { sharded, gathering, gathered };
  void fill_slots();
  void finish_copy();
  void finish_gather();
  void put_under(void* memory, uint64_t bytes);
  uint64_t bytes_of(uint64_t count) const { return count * item_size(dtype_); }

  Runtime& runtime_;
  const std::string unit_;
  const std::vector<NamedParameter> parameters_;
  const DType dtype_;
  ShardLayout layout_;
  bool in_place_;                    // the shard is all there is, and lies on the device
  MemoryBlock local_;                // the shard, padding included
  MemoryBlock initial_;              // the same in float32, until it is taken
  std::vector<bool> initial_taken_;
  c10::Storage storage_;             // what the slots' tensors are views of
  State state_ = State::sharded;
  int users_ = 0;
  MemoryBlock staged_;               // with offload and other ranks: the shard on the device, until it is gathered
  MemoryBlock full_, gathered_;      // gathered_: only where the layout needs a copy
  Copy to_device_;
  std::unique_ptr<Pending> gather_;
};

}  // namespace fsdpctl::train
