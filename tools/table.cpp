#include "tools/table.h"

#include <algorithm>

namespace fsdpctl {

namespace {
constexpr size_t kWidest = 72;
}

size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void Table::add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = visible(cell);
  rows_.push_back(std::move(cells));
}

void Table::print(Printer& printer, size_t indent) const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], std::min(display_width(row[i]), kWidest));
    }
  }
  for (size_t r = 0; r < rows_.size() && !printer.closed(); ++r) {
    std::string line(indent, ' ');
    for (size_t i = 0; i < rows_[r].size(); ++i) {
      line += rows_[r][i];
      const size_t width = display_width(rows_[r][i]);
      if (i + 1 < rows_[r].size()) line.append((width < widths[i] ? widths[i] - width : 0) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    printer.text(r == 0 ? printer.paint(Style::strong, line) : line);
  }
}

}  // namespace fsdpctl
