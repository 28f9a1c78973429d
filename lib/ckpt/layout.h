// FileLayout: one file to be written, as segments in order, without the bytes. Pure.
//
// A layout consists of items (a header, a ZIP member, one tensor), each of a few segments. Items are
// generated on demand, so a plan of a million tensors costs no gigabyte. A segment is either a tensor's
// box (the engine gathers its row-major bytes) or rendered bytes (a pure function of the item and, where
// it says so, of the CRC-32 of tensor segments of this file). At most one tensor segment per item. Segments of
// an item are adjacent; items are in file order without gaps. Implemented by formats, used by the engine.
// Const calls are thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/box.h"
#include "lib/base/value.h"

namespace fsdpctl {

struct Segment {
  enum class Kind : uint8_t {
    rendered,        // known now
    rendered_late,   // needs CRC-32s of this file: written after the data. In an item that has a tensor segment: of
                     // that item only (small items are written in one go); in other items: of any
    tensor,          // box of a tensor, in its TensorInfo::dtype, row-major, little-endian
    zero,            // zeros
  };
  Kind kind = Kind::rendered;
  uint64_t offset = 0;               // in the file
  uint64_t length = 0;
  TensorIndex tensor = kNoTensor;
  Box box;                           // dims are owned by the layout or the checkpoint's arena, or `scratch`
  uint32_t part = 0;                 // private to the layout: tells its rendered segments apart
};

// Room for the segments of one item, reused from call to call.
struct SegmentList {
  std::vector<Segment> segments;
  std::vector<int64_t> dims;         // backing for boxes made on the fly (reserve before taking views)
};

// CRC-32 of the tensor segment of an item, known once its bytes were written.
class ItemCrcs {
 public:
  virtual ~ItemCrcs() = default;
  virtual uint32_t crc32(uint64_t item) const = 0;
};

class FileLayout {
 public:
  explicit FileLayout(std::string path) : path_(std::move(path)) {}
  virtual ~FileLayout() = default;

  const std::string& path() const { return path_; }     // relative to the output directory
  virtual uint64_t size() const = 0;                     // bytes
  virtual uint64_t item_count() const = 0;
  virtual uint64_t item_offset(uint64_t item) const = 0; // non-decreasing; item_count() gives size()
  virtual void segments(uint64_t item, SegmentList& out) const = 0;   // replaces out's content
  // Appends exactly segment.length bytes. `crcs` is null for Kind::rendered.
  virtual void render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const = 0;
  virtual bool needs_crc32() const { return false; }     // some segment is rendered_late
  virtual int rank() const { return 0; }                 // holder of the file

 private:
  std::string path_;
};

using FilePlan = std::vector<std::unique_ptr<FileLayout>>;

}  // namespace fsdpctl
