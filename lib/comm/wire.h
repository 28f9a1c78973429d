// How numbers, texts and findings lie in a message between ranks: numbers are eight bytes, little-endian; a text is its
// length and its bytes. Both ends are the same program, so there are no versions here (the store's greeting checks that).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lib/base/finding.h"

namespace fsdpctl {

class WireWriter {
 public:
  WireWriter& number(uint64_t value);
  WireWriter& text(std::string_view value);
  WireWriter& finding(const Finding& value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what a WireWriter wrote. Error(failed) where the message is cut short: it came from the network.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}
  uint64_t number();
  std::string text();
  Finding finding();
  bool done() const { return rest_.empty(); }

 private:
  std::string_view take(uint64_t size);
  std::string_view rest_;
};

}  // namespace fsdpctl
