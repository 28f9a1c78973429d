// The device that a rank trains on: its kernels, its memory in pools that count, and copies beside the work.
//
// Without a GPU the device is simulated: all pools are memory of the host, counted apart, and a worker thread for each
// direction makes the copies. So a program that forgets to wait for one fails here as it would on a GPU.
//
// A Device belongs to one rank and one thread at a time. Blocks may outlive it and may be freed by any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace fsdpctl::train {

enum class Place : uint8_t {
  device,
  host,     // pageable
  pinned,   // of the host, but reached by the device's copies; blocks of exactly the size that was asked for
};
inline constexpr int kPlaces = 3;
std::string_view place_name(Place place);

// What a pool holds now, and the most it has held, in bytes as asked for.
struct PoolUse {
  uint64_t bytes = 0, peak = 0;
};

class MemoryPools;

// Memory of one pool, given back with the object. 256-byte aligned; null for 0 bytes.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block();

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  Place place() const { return place_; }

 private:
  friend class MemoryPools;
  std::shared_ptr<MemoryPools> pools_;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  Place place_ = Place::host;
};

struct DeviceOptions {
  int threads = 1;                          // of the CPU's kernels
  std::chrono::microseconds copy_delay{};   // before each copy of a simulated device: for tests
  bool poison = false;                      // fresh memory of a simulated device is NaNs: for tests
};

// Names a copy under way.
struct CopyTicket {
  kernels::Direction direction = kernels::Direction::to_host;
  uint64_t number = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const std::string& name() const = 0;   // "cpu", "cuda:0"
  virtual bool simulated() const = 0;
  virtual kernels::Kernels& kernels() = 0;

  virtual Block allocate(Place place, uint64_t bytes) = 0;   // not initialised; Error(failed) when there is no more
  virtual void zero(const Block& block) = 0;                 // returns when it is
  virtual PoolUse use(Place place) const = 0;

  // As Kernels::copy(), but the target holds nothing of use before wait() on the CPU, too. Rows may go from any place to
  // any other but host, which is not reached by copies that do not wait.
  virtual CopyTicket copy(std::vector<kernels::CopyEntry> table, kernels::Direction direction) = 0;
  virtual void wait(const CopyTicket& ticket) = 0;
};

// `name` as parse_device() takes it. Error(unsupported) where there is no such device.
std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options = {});

struct DeviceName {
  bool cuda = false;
  int ordinal = 0;
  std::string text() const;   // "cpu", "cuda:3"
};
// "cpu", "cuda" (the first) or "cuda:N"; Error(usage) for others.
DeviceName parse_device(std::string_view name);
// The device of a rank when only "cpu" or "cuda" is asked for: the GPU whose number is the rank's on its machine, however
// many there are.
DeviceName device_of_rank(std::string_view kind, int local_rank);

}  // namespace fsdpctl::train
