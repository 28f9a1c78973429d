// metrics.jsonl: an object for each step, on a line of its own; pandas.read_json(path, lines=True) reads it.
#pragma once

#include <string>

#include "lib/base/file.h"
#include "lib/train/config/config_table.h"
#include "lib/train/step_report.h"

namespace fsdpctl::train {

class MetricsFile {
 public:
  // Keeps what is there of steps up to `step`: a resumed run writes the later ones again, and a killed one may have left half a line.
  MetricsFile(const std::string& path, uint64_t step);
  void add(const StepReport& report);

 private:
  FileHandle file_;
  uint64_t size_ = 0;
};

// The same fields, for whoever else prints them. Numbers that are not finite are null.
Json step_fields(const StepReport& report);

}  // namespace fsdpctl::train
