// One rank's part in writing the files of a plan together with others (held_ranges.h says which). Private to lib/ckpt.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ckpt/engine.h"
#include "lib/ckpt/held_ranges.h"
#include "lib/ckpt/journal.h"
#include "lib/ckpt/late_writer.h"
#include "lib/ckpt/prove.h"
#include "lib/ckpt/tensor_totals.h"

namespace fsdpctl {

// All files of the plan, with their sizes.
void create_files(const FilePlan& plan, const std::string& directory);

// What was read on the way into the ranges of one file each; JobRecord::job is the number of the file.
using RangeRecords = std::vector<JobRecord>;
std::string records_text(const RangeRecords& records);
RangeRecords parse_records(std::string_view text);   // Error(failed) where it was cut

// Writes the ranges, but for late segments, which stay zeros; synced on return.
RangeRecords transfer_ranges(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                             const std::vector<FileRange>& ranges, const EngineOptions& options);

// What all ranks found out together.
class RankTotals {
 public:
  RankTotals(const Checkpoint& checkpoint, const FilePlan& plan);

  void add(const RangeRecords& records);           // Error(failed) for what cannot be of this plan
  std::vector<TensorSum> sums() const;             // Error(failed) unless every element was written once
  RangeRecords late_records() const;               // CRC-32s of the items of files that need them

 private:
  const Checkpoint& checkpoint_;
  const FilePlan& plan_;
  TensorTotals totals_;
  std::vector<std::unique_ptr<FileCrcs>> crcs_;    // by file; null where none are needed
};

// Writes the late segments of the files that are the rank's own, and syncs them.
void finish_files(const FilePlan& plan, const std::string& directory, const RangeRecords& late, int rank, int ranks);

// Reads the rank's ranges back through the output's own reader, past the page cache where possible, and compares with what was
// written. Error(failed) names the first tensor that differs.
void read_back_ranges(const Proof& proof, const FilePlan& plan, const std::vector<FileRange>& ranges, const RangeRecords& records,
                      const EngineOptions& options);

}  // namespace fsdpctl
