// Rows that objects of `.metadata` become, by number.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/dcp_cells.h"
#include "formats/dcp_globals.h"
#include "formats/dcp_machine_errors.h"

namespace fsdpctl {

inline bool is_a(Cell c, DcpClass cls) { return c.is(Cell::object) && c.n() == static_cast<uint32_t>(cls); }

template <class Row, class... Fields>
uint32_t add_row(std::vector<Row>& rows, const Fields&... fields) {
  if (rows.size() >= 0xFFFFFF0) throw unsupported_pickle("metadata holds too many objects");
  rows.emplace_back(fields...);
  return static_cast<uint32_t>(rows.size() - 1);
}

// Rows go when their dict is taken; bytes from a file are not where to rely on nobody's asking for them later.
template <class Row>
Row& row_at(std::vector<Row>& rows, uint32_t row) {
  if (row >= rows.size()) throw damaged_pickle("value in pickle is used after it was given away");
  return rows[row];
}

}  // namespace fsdpctl
