// What a rank is about to do, as it tells the others before data moves. Private to lib/comm.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/comm/communicator.h"

namespace fsdpctl {

enum class Collective : uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, exchange, barrier };

struct Header {
  static constexpr size_t kSize = 160;
  using Bytes = std::array<std::byte, kSize>;

  Collective collective = Collective::barrier;
  DType in = DType::uint8, out = DType::uint8;
  Reduction reduction = Reduction::sum;
  uint32_t root = 0;
  uint64_t count = 0;           // of elements that each rank gives (exchange: of bytes, free to differ)
  uint64_t sequence = 0;
  uint64_t unit_hash = 0;
  std::string unit;             // cut to what fits; the hash is of all of it

  // What each call of a Communicator says of itself.
  static Header all_gather(Elements in, std::string_view unit);
  static Header reduce_scatter(Elements in, MutableElements out, std::string_view unit);
  static Header all_reduce(MutableElements data, Reduction reduction, std::string_view unit);
  static Header broadcast(MutableElements data, int root, std::string_view unit);
  static Header exchange(std::string_view bytes, std::string_view unit);
  static Header barrier(std::string_view unit);

  Bytes encode() const;
  static Header decode(const Bytes& bytes);

  // The operation may go on where all ranks' headers match. `count` of an exchange is no part of it.
  bool matches(const Header& other) const;
  uint64_t hash() const;
  std::string text() const;     // "all_gather of 3 float32 in layers.3"

 private:
  void set_unit(std::string_view name);
};

// nullopt where all match; else the finding: the first rank that differs from rank 0, and what each rank wanted.
// `names` are the ranks' numbers in messages; empty: their places.
std::optional<Finding> disagreement(std::span<const Header> headers, std::span<const int> names);

}  // namespace fsdpctl
