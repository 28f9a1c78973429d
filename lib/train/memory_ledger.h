// The memory of a rank's model, accounted for by owner (a unit) and use, and guarded: what a copy under way writes cannot be
// read, and what it reads cannot be written, before it was waited for.
//
// A MemoryLedger belongs to one thread at a time and must outlive its blocks. The device must outlive the ledger.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "lib/train/device.h"

namespace fsdpctl::train {

// One line of a report. Bytes as asked for.
struct MemoryAccount {
  Place place;
  std::string owner;        // name of a unit
  std::string use;          // "parameters", "gathered parameters", "gradients", ...
  uint64_t live = 0;
  uint64_t peak = 0;        // the most at one time, since the last reset_peaks()
};

class MemoryBlock;

// A copy that was started; empty: none.
class Copy {
 public:
  void wait();              // may be repeated
  explicit operator bool() const { return state_ != nullptr; }

 private:
  friend class MemoryLedger;
  friend class MemoryBlock;
  struct State {
    Device* device;
    CopyTicket ticket;
    bool waited_for = false;
  };
  std::shared_ptr<State> state_;
};

class MemoryLedger {
 public:
  explicit MemoryLedger(Device& device) : device_(device) {}
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  MemoryBlock allocate(Place place, uint64_t bytes, std::string_view owner, std::string_view use);

  // source[source_offset, + bytes) to target[target_offset, ...), offsets in bytes, beside the computation. One of the blocks
  // is on the device, the other pinned. They may be moved meanwhile.
  Copy copy(MemoryBlock& target, uint64_t target_offset, MemoryBlock& source, uint64_t source_offset, uint64_t bytes);

  std::vector<MemoryAccount> accounts() const;   // sorted by place, owner and use
  MemoryAccount total(Place place) const { return totals_[static_cast<int>(place)]; }
  void reset_peaks();                            // to what is live
  uint64_t bytes_copied() const { return bytes_copied_; }

  // Blocks that were given back before a copy from or to them was waited for: a race on a device, so tests ask for 0. (The
  // copy is waited for then.)
  uint64_t early_releases() const { return early_releases_; }
  Device& device() { return device_; }

 private:
  friend class MemoryBlock;
  using Key = std::tuple<Place, std::string, std::string>;
  Device& device_;
  std::map<Key, MemoryAccount> accounts_;
  MemoryAccount totals_[kPlaces] = {};
  uint64_t bytes_copied_ = 0;
  uint64_t early_releases_ = 0;
};

// Some memory, given back at the end of its life. Movable.
class MemoryBlock {
 public:
  MemoryBlock() = default;
  MemoryBlock(MemoryBlock&& other) noexcept { *this = std::move(other); }
  MemoryBlock& operator=(MemoryBlock&& other) noexcept;
  ~MemoryBlock() { reset(); }

  // Error(failed) before a copy into this memory was waited for; for writing also before one out of it was.
  const void* data() const;
  void* mutable_data();
  uint64_t bytes() const { return block_.bytes(); }
  explicit operator bool() const { return ledger_ != nullptr; }
  void reset() noexcept;

 private:
  friend class MemoryLedger;
  MemoryLedger* ledger_ = nullptr;
  MemoryAccount* account_ = nullptr;
  Block block_;
  std::shared_ptr<Copy::State> writer_;
  std::vector<std::shared_ptr<Copy::State>> readers_;
};

}  // namespace fsdpctl::train
