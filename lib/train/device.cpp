#include "lib/train/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <new>

#include "lib/base/finding.h"
#include "lib/train/copy_stream.h"

namespace fsdpctl::train {

using kernels::CopyEntry;
using kernels::Direction;
using kernels::Kernels;

// Counts what is allocated where. Blocks share it, so that it is there when the last one goes.
class MemoryPools : public std::enable_shared_from_this<MemoryPools> {
 public:
  MemoryPools(std::unique_ptr<Kernels> kernels, bool poison) : kernels_(std::move(kernels)), poison_(poison) {}

  Kernels& kernels() { return *kernels_; }

  Block allocate(Place place, uint64_t bytes) {
    Block block;
    block.data_ = take(place, bytes);
    block.pools_ = shared_from_this();
    block.bytes_ = bytes;
    block.place_ = place;
    if (poison_ && bytes != 0) std::memset(block.data_, 0xFF, bytes);
    Counter& counter = counters_[static_cast<size_t>(place)];
    const uint64_t now = counter.bytes += bytes;
    uint64_t peak = counter.peak;
    while (now > peak && !counter.peak.compare_exchange_weak(peak, now)) {
    }
    return block;
  }

  void release(const Block& block) noexcept {
    counters_[static_cast<size_t>(block.place_)].bytes -= block.bytes_;
    switch (block.place_) {
      case Place::device: return kernels_->release(block.data_);
      case Place::pinned: return kernels_->release_host(block.data_);
      case Place::host: return ::operator delete(block.data_, kAlignment);
    }
  }

  PoolUse use(Place place) const {
    const Counter& counter = counters_[static_cast<size_t>(place)];
    return {counter.bytes, counter.peak};
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
  struct Counter {
    std::atomic<uint64_t> bytes{0}, peak{0};
  };

  void* take(Place place, uint64_t bytes) {
    if (place == Place::device) return kernels_->allocate(bytes);
    if (place == Place::pinned) return kernels_->allocate_host(bytes);
    if (bytes == 0) return nullptr;
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr) throw Error(Exit::failed, "out of memory").found_only(fmt::format("{} bytes", bytes));
    return memory;
  }

  const std::unique_ptr<Kernels> kernels_;
  const bool poison_;
  std::array<Counter, kPlaces> counters_;
};

Block& Block::operator=(Block&& other) noexcept {
  std::swap(pools_, other.pools_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(place_, other.place_);
  return *this;
}

Block::~Block() {
  if (pools_) pools_->release(*this);
}

namespace {

class AnyDevice : public Device {
 public:
  AnyDevice(std::string name, std::unique_ptr<Kernels> kernels, bool poison)
      : pools_(std::make_shared<MemoryPools>(std::move(kernels), poison)), name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  Kernels& kernels() override { return pools_->kernels(); }
  Block allocate(Place place, uint64_t bytes) override { return pools_->allocate(place, bytes); }
  PoolUse use(Place place) const override { return pools_->use(place); }

 private:
  const std::shared_ptr<MemoryPools> pools_;
  const std::string name_;
};

class SimulatedDevice final : public AnyDevice {
 public:
  explicit SimulatedDevice(const DeviceOptions& options)
      : AnyDevice("cpu", kernels::cpu_kernels(options.threads), options.poison),
        to_device_(options.copy_delay),
        to_host_(options.copy_delay) {}
  bool simulated() const override { return true; }
  CopyTicket copy(std::vector<CopyEntry> table, Direction direction) override {
    return {direction, stream(direction).start(std::move(table))};
  }
  void wait(const CopyTicket& ticket) override { stream(ticket.direction).wait(ticket.number); }
  void zero(const Block& block) override {
    if (block.bytes() != 0) std::memset(block.data(), 0, block.bytes());
  }

 private:
  CopyStream& stream(Direction direction) { return direction == Direction::to_device ? to_device_ : to_host_; }
  CopyStream to_device_, to_host_;
};

class Gpu final : public AnyDevice {
 public:
  explicit Gpu(const DeviceName& name) : AnyDevice(name.text(), kernels::cuda_kernels(name.ordinal), false) {}
  bool simulated() const override { return false; }
  CopyTicket copy(std::vector<CopyEntry> table, Direction direction) override {
    return {direction, kernels().copy(table, direction)};
  }
  void wait(const CopyTicket& ticket) override { kernels().wait(ticket.number); }
  void zero(const Block& block) override {
    constexpr uint64_t kPart = 4 << 20;
    const Block zeros = allocate(Place::pinned, std::min(block.bytes(), kPart));
    if (zeros.bytes() != 0) std::memset(zeros.data(), 0, zeros.bytes());
    std::vector<CopyEntry> table;
    for (uint64_t at = 0; at < block.bytes(); at += kPart) {
      table.push_back({zeros.data(), block.as<std::byte>() + at, std::min(kPart, block.bytes() - at)});
    }
    wait(copy(std::move(table), Direction::to_device));
  }
};

}  // namespace

std::string_view place_name(Place place) {
  switch (place) {
    case Place::device: return "device";
    case Place::host: return "host";
    case Place::pinned: return "pinned";
  }
  return "";
}

std::string DeviceName::text() const { return cuda ? fmt::format("cuda:{}", ordinal) : "cpu"; }

DeviceName parse_device(std::string_view name) {
  if (name == "cpu") return {};
  if (name == "cuda") return {true, 0};
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(5);
    int ordinal = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
    if (error == std::errc() && end == digits.data() + digits.size() && ordinal >= 0) return {true, ordinal};
  }
  throw Error(Exit::usage, "unknown device").saw("cpu, cuda or cuda:N", std::string(name));
}

DeviceName device_of_rank(std::string_view kind, int local_rank) {
  DeviceName device = parse_device(kind);
  if (device.cuda && kind == "cuda") device.ordinal = local_rank;
  return device;
}

std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options) {
  const DeviceName device = parse_device(name);
  if (device.cuda) return std::make_unique<Gpu>(device);
  return std::make_unique<SimulatedDevice>(options);
}

}  // namespace fsdpctl::train
