// Masters and moments of the parameters that an optimizer updates, on this rank: FP32, each of the size of the local shard,
// in the device's pools.
//
// Moments exist from a parameter's first step on. State can be moved off the device and back: while a move is under way,
// and until its wait(), every use throws Error(usage). Not thread-safe. The device must outlive this.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lib/train/device.h"

namespace fsdpctl::train {

class OptimizerState;

// A move that was started. Not waiting for it leaves the state unusable.
class [[nodiscard]] StateMove {
 public:
  uint64_t bytes() const;        // that it moves: 0 where everything was there already
  bool simulated() const;        // no GPU is involved
  void wait();                   // returns when the state is there; its old memory is free then

 private:
  friend class OptimizerState;
  struct Transit;
  std::shared_ptr<Transit> transit_;
};

class OptimizerState {
 public:
  explicit OptimizerState(Device& device) : device_(device) {}
  ~OptimizerState();
  OptimizerState(const OptimizerState&) = delete;

  // A parameter of `count` elements. `alias`: its master is this memory, owned by the model and never moved; null: one is
  // allocated, not initialised.
  void add(uint64_t count, int moments, float* alias);

  size_t size() const { return slots_.size(); }
  uint64_t count(size_t i) const { return slots_[i].count; }
  int moments(size_t i) const { return slots_[i].moments; }
  uint64_t step(size_t i) const { return slots_[i].step; }   // steps taken; 0: no moments yet
  bool aliased(size_t i) const { return slots_[i].alias != nullptr; }

  // Where it is now: device or pinned memory. `moment` is 0 or 1; null before the first step.
  float* master(size_t i) const;
  float* moment(size_t i, int moment) const;

  // Before the `step`-th step: counts it, and makes moments of zeros for the first.
  void begin_step(size_t i);
  // From a checkpoint: `step` 0 drops the moments; others take `moments`, from make_moments(), where there are none.
  void set_step(size_t i, uint64_t step, std::array<Block, 2> moments);
  std::array<Block, 2> make_moments(size_t i) const;   // room for them, not initialised

  // Copies, in memory of the pool `pinned`; returns when they are there. Also of state that is off the device.
  struct Part {
    size_t parameter = 0;
    int moment = -1;   // or its master
  };
  std::vector<Block> snapshot(std::span<const Part> parts) const;

  // Off the device, or back to it: the moments that exist, and masters where asked for. Back: all that is not there.
  StateMove offload(bool masters);
  StateMove load();

  bool offloaded() const;                                  // something is not on the device
  void require_ready(std::string_view operation) const;    // no move is under way
  void require_loaded(std::string_view operation) const;   // and everything is on the device

 private:
  friend class StateMove;
  struct Slot {
    uint64_t count = 0, step = 0;
    int moments = 0;
    float* alias = nullptr;
    Block master;
    std::array<Block, 2> moment;
  };
  StateMove move(Place to, bool masters);

  Device& device_;
  std::vector<Slot> slots_;
  std::shared_ptr<StateMove::Transit> transit_;   // the last move, until its wait()
};

}  // namespace fsdpctl::train
