// What the values of the pickle machine of `.metadata` mean. Errors that it throws get the file and the offset of the opcode.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "formats/dcp_cells.h"

namespace fsdpctl {

class CellMeaning {
 public:
  enum GlobalClass : uint32_t { kOther, kSizeClass, kRowClass };   // n of a global: torch.Size, and from kRowClass on classes that become rows
  virtual ~CellMeaning() = default;
  virtual Cell global(std::string_view module, std::string_view name) = 0;      // a Cell::global
  virtual Cell call(Cell global, std::span<const Cell> args) = 0;               // called, or made by NEWOBJ
  // BUILD on an object: its fields (key, value, key, value ...), or a state that is no dict.
  virtual void build(Cell object, std::span<const Cell> fields) = 0;
  virtual void build_state(Cell object, Cell state) = 0;
  // Items (key, value, ...) that go into a dict. True: they were taken, and the dict need not have them.
  virtual bool take(Cell dict, std::span<const Cell> items) = 0;
  // This value may be used again, later than by what it is part of.
  virtual void hold(Cell value) = 0;
};

}  // namespace fsdpctl
