// Pools, and copies of the simulated device: late ones really are.
#include "lib/train/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/support/error_of.h"

namespace fsdpctl::train {
namespace {

TEST(Device, NamesAreParsed) {
  EXPECT_EQ(parse_device("cpu").text(), "cpu");
  EXPECT_EQ(parse_device("cuda").text(), "cuda:0");
  EXPECT_EQ(parse_device("cuda:12").text(), "cuda:12");
  for (const char* bad : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU"}) {
    EXPECT_EQ(error_of([&] { parse_device(bad); }).code, Exit::usage) << bad;
  }
  EXPECT_EQ(device_of_rank("cuda", 11).text(), "cuda:11");
  EXPECT_EQ(device_of_rank("cuda:2", 11).text(), "cuda:2");
  EXPECT_EQ(device_of_rank("cpu", 11).text(), "cpu");
}

TEST(Device, ThatIsNotThereIsUnsupported) {
  EXPECT_EQ(error_of([] { open_device("cuda:9999"); }).code, Exit::unsupported);
}

TEST(Device, PoolsCountExactly) {
  const auto device = open_device("cpu");
  EXPECT_TRUE(device->simulated());
  for (const Place place : {Place::device, Place::host, Place::pinned}) {
    {
      const Block a = device->allocate(place, 1000);
      Block b = device->allocate(place, 3);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
      EXPECT_EQ(device->use(place).bytes, 1003u) << place_name(place);
      b = Block();
      EXPECT_EQ(device->use(place).bytes, 1000u);
    }
    EXPECT_EQ(device->use(place).bytes, 0u);
    EXPECT_EQ(device->use(place).peak, 1003u);
  }
  EXPECT_EQ(device->allocate(Place::device, 0).data(), nullptr);
}

TEST(Device, BlocksOutliveIt) {
  Block block;
  {
    const auto device = open_device("cpu");
    block = device->allocate(Place::pinned, 64);
  }
  std::memset(block.data(), 1, 64);
}

TEST(Device, CopiesAreLateUntilWait) {
  DeviceOptions options;
  options.copy_delay = std::chrono::milliseconds(50);
  options.poison = true;
  const auto device = open_device("cpu", options);
  const Block from = device->allocate(Place::device, 64), to = device->allocate(Place::pinned, 64),
              back = device->allocate(Place::device, 64);
  device->zero(from);
  const auto first = [](const Block& block) { return static_cast<int>(*block.as<uint8_t>()); };
  const CopyTicket out = device->copy({{from.data(), to.data(), 64}}, kernels::Direction::to_host);
  EXPECT_EQ(first(to), 0xFF);
  device->wait(out);
  EXPECT_EQ(first(to), 0);
  device->wait(device->copy({{to.data(), back.data(), 64}}, kernels::Direction::to_device));
  EXPECT_EQ(first(back), 0);
}

TEST(Device, StartedCopiesEndBeforeItDoes) {
  std::vector<char> from(100, 'x'), to(100);
  {
    DeviceOptions options;
    options.copy_delay = std::chrono::milliseconds(20);
    const auto device = open_device("cpu", options);
    device->copy({{from.data(), to.data(), 100}}, kernels::Direction::to_host);
  }
  EXPECT_EQ(to, from);
}

}  // namespace
}  // namespace fsdpctl::train
