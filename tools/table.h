// A table of text with aligned columns.
#pragma once

#include <string>
#include <vector>

#include "tools/printer.h"

namespace fsdpctl {

class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  // Control characters in cells are made visible. Rows may be shorter than the head.
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.size() == 1; }
  // The head is printed strong. Columns are as wide as their widest cell, up to 72 characters; the last one is not
  // padded.
  void print(Printer& printer, size_t indent = 0) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Characters that `text` takes on a terminal, counting code points of UTF-8.
size_t display_width(std::string_view text);

}  // namespace fsdpctl
