#include "formats/dcp_globals.h"

#include <algorithm>

#include "formats/dcp_meaning.h"

namespace fsdpctl {
namespace {

Cell cell_of(const DcpGlobal& global, size_t row) {
  uint32_t n = CellMeaning::kOther;
  if (global.cls != DcpClass::none) n = CellMeaning::kRowClass + static_cast<uint32_t>(global.cls);
  else if (global.python.role == PythonRole::size) n = CellMeaning::kSizeClass;
  return Cell(Cell::global, n, static_cast<uint32_t>(row));
}

}  // namespace

Cell DcpGlobals::number(std::string_view module, std::string_view name) {
  const auto [now_module, now_name] = python3_name(module, name);
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].name == now_name && rows_[i].module == now_module) return cell_of(rows_[i], i);
  }
  DcpGlobal row{std::string(now_module), std::string(now_name), classify_python_name(now_module, now_name)};
  const auto* at = std::find(kDcpClassNames.begin() + 1, kDcpClassNames.end(), now_name);
  if (at != kDcpClassNames.end()) row.cls = static_cast<DcpClass>(at - kDcpClassNames.begin());
  if (row.python.role == PythonRole::unsafe) {
    throw Error(Exit::unsupported, "unsafe callable in pickle").found_only(row.full_name());
  }
  if (row.python.role == PythonRole::foreign && row.cls == DcpClass::none) {
    warnings_.push_back(warning("unknown class in the metadata ignored").found_only(row.full_name()));
  }
  rows_.push_back(std::move(row));
  return cell_of(rows_.back(), rows_.size() - 1);
}

const DcpGlobal* DcpGlobals::find(DcpClass cls) const {
  const auto at = std::find_if(rows_.rbegin(), rows_.rend(), [&](const DcpGlobal& g) { return g.cls == cls; });
  return at == rows_.rend() ? nullptr : &*at;
}

}  // namespace fsdpctl
