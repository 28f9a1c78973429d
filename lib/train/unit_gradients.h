// The gradients of a unit: what backward gives for whole parameters on each rank becomes this rank's part of the sum over all
// ranks.
//
// Sums are in FP32 and in a fixed order: micro-batch by micro-batch, within each in rank order. So N ranks with one
// micro-batch each, and one rank with N, add the same numbers in the same order. Without synchronisation a rank adds its
// micro-batches first.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/train/runtime.h"
#include "lib/train/unit_parameters.h"

namespace fsdpctl::train {

class UnitGradients {
 public:
  UnitGradients(Runtime& runtime, const UnitParameters& parameters, DType reduce_dtype);
  ~UnitGradients();

  // One gradient for each parameter, undefined where there is none. Adds to what is there, at once or, with other ranks, when
  // complete() is called; collective in a pass that synchronises.
  void accept(const Tensors& gradients);
  void begin_pass() { accepted_ = false; }
  bool accepted() const { return accepted_; }     // in this pass
  void complete();                                // the reduction under way, if there is one
  void finish_pass();                             // copies to the host are there

  // This rank's part, float32; undefined where no pass gave any rank's gradient since clear().
  at::Tensor gradient(size_t parameter);
  bool has(size_t parameter) const { return parts_[parameter].given; }   // backward on this rank gave one
  void clear(size_t parameter) { parts_[parameter] = Part(); }
  void divide(float divisor);                     // all that is there

 private:
  struct Part {
    bool given = false;      // by backward on this rank
    bool summed = false;     // home_ holds a sum
    bool unsynced = false;   // unsynced_ holds a sum of this rank's
  };
  struct Outgoing {          // a reduced gradient on its way to the host
    MemoryBlock device, host;   // host: empty where it goes straight to home_
    Copy copy;
  };

  bool sums_alone() const;   // no other rank and no host takes part
  void add_here(const Tensors& gradients);
  void add_unsynced(const Tensors& gradients);
  Tensors take_unsynced(const Tensors& last);
  void start_reduction(const Tensors& gradients);
  void write(const Tensors& gradients, MemoryBlock& target, DType dtype);
  void fold(const float* reduced);                // into home_
  void send_to_host(MemoryBlock reduced);
  MemoryBlock& home();
  MemoryBlock allocate(Place place, uint64_t count, DType dtype, std::string_view use);
  at::Tensor rounded(const at::Tensor& gradient) const;

  Runtime& runtime_;
  const UnitParameters& parameters_;
  const ShardLayout& layout_;
  const DType reduce_dtype_;
  const bool has_padding_;                        // in the gathered form
  std::vector<Part> parts_;
  bool accepted_ = false;
  MemoryBlock home_;                              // the sum: a shard, float32; on the host with offload
  MemoryBlock unsynced_;                          // full form, float32
  MemoryBlock buffer_, reduced_;                  // of the reduction under way
  std::unique_ptr<Pending> pending_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace fsdpctl::train
