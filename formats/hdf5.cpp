#include "formats/hdf5.h"

#include <algorithm>
#include <array>

#include "formats/hdf5_content.h"
#include "formats/hdf5_reader.h"
#include "formats/hdf5_skeleton.h"

namespace fsdpctl {
namespace {

constexpr std::array<char, 8> kSignature = {'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};

// The signature is at 0 or, behind a user block, at 512, 1024, 2048 ...
std::optional<uint64_t> find_signature(const Source& source, SourceIndex index) {
  const uint64_t size = source.file(index).size;
  for (uint64_t offset = 0; offset + kSignature.size() <= size; offset = offset == 0 ? 512 : offset * 2) {
    std::array<char, 8> found{};
    source.read(index, offset, std::as_writable_bytes(std::span(found)));
    if (found == kSignature) return offset;
  }
  return std::nullopt;
}

// The file: what the library wrote, in blocks, and between it the datasets.
class Hdf5Layout : public FileLayout {
 public:
  Hdf5Layout(std::string path, const Checkpoint& checkpoint, Hdf5Skeleton skeleton)
      : FileLayout(std::move(path)), checkpoint_(checkpoint), skeleton_(std::move(skeleton)) {
    uint64_t end = 0;
    size_t dims = 0;
    for (uint32_t i = 0; i < skeleton_.extents.size(); ++i) {
      const Hdf5Extent& extent = skeleton_.extents[i];
      add_library_bytes(end, extent.offset);
      items_.push_back({extent.offset, i});
      end = extent.offset + extent.length;
      dims = std::max(dims, checkpoint.tensors[extent.tensor].shape.size());
    }
    add_library_bytes(end, skeleton_.size);
    zeros_.resize(dims);
  }

  uint64_t size() const override { return skeleton_.size; }
  uint64_t item_count() const override { return items_.size(); }
  uint64_t item_offset(uint64_t item) const override { return item < items_.size() ? items_[item].offset : skeleton_.size; }

  void segments(uint64_t item, SegmentList& out) const override {
    out.segments.assign(1, Segment{});
    Segment& segment = out.segments.front();
    segment.offset = items_[item].offset;
    segment.length = item_offset(item + 1) - segment.offset;
    if (items_[item].extent == kLibrary) return;
    const TensorIndex t = skeleton_.extents[items_[item].extent].tensor;
    const Dims shape = checkpoint_.tensors[t].shape;
    segment.kind = Segment::Kind::tensor;
    segment.tensor = t;
    segment.box = {Dims(zeros_).first(shape.size()), shape};
  }

  void render(uint64_t, const Segment& segment, const ItemCrcs*, std::string& out) const override {
    const size_t start = out.size();
    out.resize(start + segment.length);
    skeleton_.file.read(segment.offset, std::as_writable_bytes(std::span(out)).subspan(start));
  }

 private:
  static constexpr uint32_t kLibrary = UINT32_MAX;   // bytes of the library
  static constexpr uint64_t kBlock = 1 << 20;
  struct Item {
    uint64_t offset;
    uint32_t extent;
  };

  void add_library_bytes(uint64_t begin, uint64_t end) {
    for (; begin < end; begin += std::min(kBlock, end - begin)) items_.push_back({begin, kLibrary});
  }

  const Checkpoint& checkpoint_;
  Hdf5Skeleton skeleton_;
  std::vector<Item> items_;
  std::vector<int64_t> zeros_;
};

class Hdf5Format : public Format {
 public:
  std::string_view name() const override { return "hdf5"; }

  std::optional<Match> recognize(Source& source) const override {
    if (source.is_directory()) return std::nullopt;
    const auto offset = find_signature(source, source.add(source.entries().front().name));
    if (!offset) return std::nullopt;
    return Match{100, *offset == 0 ? "HDF5 signature" : "HDF5 signature behind a user block"};
  }

  Checkpoint open(std::shared_ptr<Source> source, FindingSink& sink) const override { return read_hdf5(std::move(source), sink); }

  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.writes = true;
    capabilities.single_file = true;
    capabilities.endings = {".h5", ".hdf5"};
    return capabilities;
  }

  void can_carry(const Checkpoint& checkpoint, const Target&, FindingSink& sink) const override {
    check_hdf5_content(checkpoint, hdf5_content(checkpoint), sink);
  }

  FilePlan lay_out(const Checkpoint& checkpoint, const Target& target) const override {
    FilePlan plan;
    plan.push_back(std::make_unique<Hdf5Layout>(target.file_name, checkpoint, make_hdf5_skeleton(checkpoint, hdf5_content(checkpoint))));
    return plan;
  }
};

}  // namespace

std::unique_ptr<Format> hdf5_format() { return std::make_unique<Hdf5Format>(); }

}  // namespace fsdpctl
