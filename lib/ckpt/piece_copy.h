// PieceCopier: brings the elements of one box of one piece from disk to where they belong in memory.
//
// Contiguous runs are read in place. Strided ones are read in spans (or, where most of a span would be wasted, run by
// run) into a staging buffer that stays in the cache, and copied from there. Checksums are taken from the bytes as
// they were read. Not thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "lib/ckpt/checkpoint.h"
#include "lib/ckpt/running_crc.h"
#include "lib/ckpt/source_reader.h"
#include "lib/ckpt/strided_copy.h"

namespace fsdpctl {

// The elements of a box, innermost axis first: where on disk, where in the target, where in the tensor.
struct Walk {
  SourceIndex file = 0;
  uint64_t offset = 0;      // in the file, of the first element
  uint64_t logical = 0;     // of the first element, in the tensor's row-major order
  uint32_t item = 1;        // bytes of an element
  size_t rank = 0;
  std::array<Axis, kMaxAxes> axes;

  std::span<const Axis> used() const { return std::span(axes).first(rank); }
  void push(const Axis& axis);              // outwards; joined with the last where the three agree
  uint64_t bytes() const;
  uint64_t run() const;                     // bytes of a run that disk and tensor have in common
  bool contiguous(int64_t Axis::* where) const;   // one run, in order
};

struct CopySums {
  RunningCrc64* crc64 = nullptr;   // receives the runs as read; requires Walk::run() of some size to be quick
  bool want_crc32 = false;         // only for walks that are contiguous on disk
  uint32_t crc32 = 0;              // of the bytes read
};

class PieceCopier {
 public:
  // `stage`: bytes of the staging buffer. `cancel` may be null.
  PieceCopier(SourceReader& reader, uint64_t stage, const std::atomic<bool>* cancel);

  // Error(interrupted) soon after *cancel becomes true.
  void copy(const Walk& walk, std::byte* target, CopySums& sums);
  // CRC-32 of bytes [offset, offset + length) of a file.
  uint32_t crc32_of(SourceIndex file, uint64_t offset, uint64_t length);

 private:
  struct Place {
    uint64_t offset;       // in the file
    std::byte* target;
    uint64_t logical;
  };
  Place step(const Place& place, const Axis& axis, int64_t i) const;
  void descend(size_t k, const Place& place);
  void copy_run(const Place& place, uint64_t bytes);
  void copy_span(size_t k, int64_t rows, const Place& place);
  void copy_rows(size_t k, int64_t rows, const Place& place);
  void add_sums(const std::byte* memory, uint64_t bytes, std::span<const Axis> axes, const Place& place);
  void check_cancel() const;

  SourceReader& reader_;
  const std::atomic<bool>* cancel_;
  uint64_t stage_size_;
  std::unique_ptr<std::byte[]> stage_;

  // The walk in hand. Axes are sorted by their distance on disk; entry k describes the innermost k of them.
  SourceIndex file_ = 0;
  uint32_t item_ = 1;
  CopySums* sums_ = nullptr;
  std::array<Axis, kMaxAxes> axes_{};
  std::array<uint64_t, kMaxAxes + 1> extent_;   // bytes on disk from the first to the last element
  std::array<bool, kMaxAxes + 1> dense_;        // no gaps on disk worth a read of their own
  std::array<bool, kMaxAxes + 1> same_;         // contiguous, and in the same order, on both sides
  bool large_runs_ = false;
};

}  // namespace fsdpctl
