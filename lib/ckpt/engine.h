// Engine: the one place that moves bytes. N threads, reused aligned buffers, fixed memory whatever the size.
//
// transfer() writes the files of a plan; fingerprint() reads every tensor and writes nothing. Both report
// progress and stop soon after `cancel` becomes true (Error(interrupted)). Results do not depend on the
// number of threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/gather.h"
#include "lib/ckpt/layout.h"

namespace fsdpctl {

struct EngineOptions {
  int threads = 0;                             // 0: chosen from the machine
  uint64_t max_memory = 96ull << 20;           // buffers of all threads
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(uint64_t done, uint64_t total)> progress;   // bytes; called from one thread at a time
  bool direct = true;                          // try O_DIRECT
  // transfer() only: how often finished jobs are synced and entered in the journal.
  std::chrono::milliseconds journal_interval{5000};
  // fingerprint() only: receives each tensor that could not be read (its sums stay 0) and why, instead of the first
  // such Error being thrown. Called from one thread at a time, in no particular order.
  std::function<void(TensorIndex, const Error&)> on_damage;
};

// Per tensor, in catalog order.
struct TensorSum {
  uint64_t source_crc64 = 0;                   // finished, of the logical bytes as stored (before a cast)
  uint64_t crc64 = 0;                          // finished, of the logical bytes in TensorInfo::dtype
  CastCounts casts;
};

struct TransferResult {
  std::vector<TensorSum> tensors;
  uint64_t bytes_written = 0;
  uint64_t bytes_resumed = 0;                  // taken over from the journal
  uint64_t bytes_redone = 0;                   // of those written: in the journal, but no longer what was written then
};

// Where finished jobs are noted, so that they are not done again.
struct Journals {
  std::string own;                             // appended to; empty: none is kept
  std::vector<std::string> others;             // of other processes with the same plan; only read
  bool check = true;                           // read what they tell of once more, before it is believed
};

// Writes plan's files below `directory` (created as needed; sizes set first), but for the jobs found in a journal whose
// bytes are still those that were written. Every file is synced before return.
TransferResult transfer(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                        const Journals& journals, const EngineOptions& options);

// One of several processes that do the jobs of one plan together.
struct Share {
  uint64_t index = 0, count = 1;               // index < count
};

// Writes a share of the jobs only; on return they are synced and in the journal. When all shares are done, transfer() with all
// journals writes what depends on the whole, and returns the sums. Returns the bytes written.
uint64_t transfer_share(const Checkpoint& checkpoint, const FilePlan& plan, const std::string& directory,
                        const Journals& journals, const Share& share, const EngineOptions& options);
bool all_jobs_done(const FilePlan& plan, const std::vector<std::string>& journals);

// CRC-64 of the tensors (all when empty); the others' entries stay 0.
std::vector<TensorSum> fingerprint(const Checkpoint& checkpoint, std::span<const TensorIndex> tensors,
                                   const EngineOptions& options);

// Visits the logical bytes of one tensor in order, in blocks (SHA-256, NaN counts, diff).
void read_tensor(const Checkpoint& checkpoint, TensorIndex t, const EngineOptions& options,
                 const std::function<void(uint64_t offset, std::span<const std::byte>)>& visit);

// Fingerprint of a whole checkpoint: CRC-64/XZ of these lines, sorted by their bytes, each ended by LF:
//   key TAB dtype TAB [2,3] TAB crc      a tensor; an alias has a line of its own
//   key TAB json TAB TAB crc             any other leaf: of its canonical JSON
//   key TAB storage TAB [24] TAB crc     bytes that an inert object holds (its tensors have lines as above)
// crc: CRC-64/XZ as 16 hexadecimal digits. Neither placement nor format changes it.
uint64_t checkpoint_fingerprint(const Checkpoint& checkpoint, const std::vector<TensorSum>& sums);

}  // namespace fsdpctl
