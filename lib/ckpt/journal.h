// Journal: which jobs of a transfer are done, so that a killed run can be continued.
//
// A text file: a header line that names the plan, then one line for each finished job, written after the job's data
// was synced. Each line ends with its own CRC-64; the first line that does not match (a torn one) ends the journal.
// Numbers are hexadecimal:
//
//   fsdpctl-journal 1 <plan> <crc64>
//   <job> t <n> {<tensor> <bytes> <source crc64> <crc64> <changed> <overflowed> <flushed>}
//         i <n> {<item> <crc32>}  p <n> {<piece> <begin> <length> <crc32>} <crc64>
//
// Appending is thread-safe.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/file.h"
#include "lib/ckpt/piece_crcs.h"
#include "lib/ckpt/tensor_totals.h"

namespace fsdpctl {

// Contribution to the CRC-32 of an item's tensor segment: of some of its bytes, shifted past those that follow.
struct ItemPart {
  uint64_t item = 0;
  uint32_t crc32 = 0;
};

// What a job found out on the way.
struct JobRecord {
  uint64_t job = 0;
  std::vector<TensorPart> tensors;
  std::vector<ItemPart> items;
  std::vector<PieceRange> ranges;   // of pieces with a CRC-32 that it read in part
};

// Whether two jobs left the same bytes, as far as sums tell.
bool same_output(const JobRecord& a, const JobRecord& b);

// Of each job that the journal calls finished; false ends the journal there, as if this line and those behind it had not
// been written.
using JournalVisitor = std::function<bool(const JobRecord&)>;

// Reads the journal of another process, which may be writing it. Nothing where it is absent or of another plan.
void read_journal(const std::string& path, uint64_t plan, const JournalVisitor& visit);

class Journal {
 public:
  // Opens or creates it and reads what an earlier run of the same plan wrote. The journal of another plan is begun anew.
  Journal(const std::string& path, uint64_t plan, const JournalVisitor& visit);

  void append(std::string_view line);   // see journal_line

 private:
  std::mutex mutex_;
  FileHandle file_;
  uint64_t end_ = 0;
};

// One line, ended by LF, and back; false where the line is torn.
std::string journal_line(const JobRecord& record);
bool parse_journal_line(std::string_view line, JobRecord& record);

}  // namespace fsdpctl
