// Arguments of pickle opcodes at a place in memory. Callers see to it that the bytes may be looked at.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats/codec/pickle_opcodes.h"
#include "formats/dcp_cells.h"

namespace fsdpctl {

inline uint8_t byte_at(const char* p) { return static_cast<uint8_t>(*p); }

template <class Integer>
Integer load(const char* p) {
  Integer v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The integer whose opcode is at p, which moves behind it. False for other opcodes, and for integers that no cell holds.
inline bool take_integer(const char*& p, Cell& value) {
  switch (byte_at(p)) {
    case pickle::kBinInt1: value = Cell::number(byte_at(p + 1)), p += 2; return true;
    case pickle::kBinInt2: value = Cell::number(load<uint16_t>(p + 1)), p += 3; return true;
    case pickle::kBinInt: value = Cell::number(load<int32_t>(p + 1)), p += 5; return true;
    case pickle::kLong1: {
      const uint8_t length = byte_at(p + 1);
      if (length == 0 || length > 8) return false;
      const unsigned shift = 64 - 8U * length;
      value = Cell::number(static_cast<int64_t>(load<uint64_t>(p + 2) << shift) >> shift);
      p += 2 + length;
      return value.is(Cell::integer);
    }
    default: return false;
  }
}

// The number in the memo that BINGET or LONG_BINGET at p fetches; p moves behind it. False for other opcodes.
inline bool take_fetch(const char*& p, uint32_t& id) {
  switch (byte_at(p)) {
    case pickle::kBinGet: id = byte_at(p + 1), p += 2; return true;
    case pickle::kLongBinGet: id = load<uint32_t>(p + 1), p += 5; return true;
    default: return false;
  }
}

}  // namespace fsdpctl
