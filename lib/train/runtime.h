// What the units of one model share: the ranks they talk to, the memory they take, and how they are told to work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lib/base/dtype.h"
#include "lib/comm/communicator.h"
#include "lib/train/memory_ledger.h"
#include "lib/train/models/module.h"
#include "lib/train/parameter_shard.h"

namespace fsdpctl::train {

// The ranks, in two dimensions. Parameters are cut over `shard` and repeated over `replicate`; none: one rank.
// FULL_SHARD has shard alone, NO_SHARD replicate alone, HSDP both. Neither is owned.
struct Mesh {
  Communicator* shard = nullptr;
  Communicator* replicate = nullptr;

  int shards() const { return shard != nullptr ? shard->size() : 1; }
  int shard_rank() const { return shard != nullptr ? shard->rank() : 0; }
  int replicas() const { return replicate != nullptr ? replicate->size() : 1; }
  int replica() const { return replicate != nullptr ? replicate->rank() : 0; }
  int ranks() const { return shards() * replicas(); }
};

// Dtypes of a unit. Gradients are rounded to `reduce` before ranks are summed, which happens in FP32 whatever it is.
struct Precision {
  DType compute = DType::float32;   // of gathered parameters and of the unit's floating inputs
  DType reduce = DType::float32;
  DType buffers = DType::float32;
};

class Unit;

// The order in which units took their parameters in the last pass: whose come next.
class ExecutionOrder {
 public:
  struct Coming {
    Unit* next = nullptr;    // the one that followed last time; null: unknown
    Unit* after = nullptr;   // the one that followed that
  };
  Coming took(Unit* unit);
  void end_pass();
  void abandon_pass() { now_.clear(); }

 private:
  std::vector<Unit*> last_, now_;
};

class UnitGradients;

struct Runtime {
  Mesh mesh;
  ShardPlacement placement = ShardPlacement::flat;
  bool offload = false;
  bool prefetch = true;
  MemoryLedger& memory;

  MicroBatch micro_batch;
  bool synchronises = true;              // backward ends in a reduction over ranks
  at::Tensor anchor;                     // requires a gradient: makes units part of the graph whose inputs need none
  ExecutionOrder forward_order, backward_order;
  bool in_backward = false;
  UnitGradients* reducing = nullptr;     // whose reduction is under way
  std::vector<Unit*> kept;               // gathered from their forward to their backward
  void* call = nullptr;                  // the call of a unit whose forward runs (unit_call.h)
};

}  // namespace fsdpctl::train
