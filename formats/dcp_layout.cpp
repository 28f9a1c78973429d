#include "formats/dcp_layout.h"

#include <algorithm>
#include <array>
#include <memory>

#include "formats/dcp_files.h"
#include "formats/dcp_metadata_writer.h"
#include "formats/dcp_plan.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxDims = 64;

// A chunk's box in a buffer of its own.
struct ChunkBox {
  ChunkBox(const DcpPlan& plan, const DcpPlannedTensor& tensor, uint32_t chunk)
      : dims(plan.checkpoint().tensors[tensor.tensor].shape.size()) {
    plan.box(tensor, chunk, std::span(offsets).first(dims), std::span(sizes).first(dims));
  }
  size_t dims;
  std::array<int64_t, kMaxDims> offsets, sizes;
  Dims offset() const { return Dims(offsets).first(dims); }
  Dims size() const { return Dims(sizes).first(dims); }
};

class NoCrcs : public ItemCrcs {
 public:
  uint32_t crc32(uint64_t) const override { return 0; }   // of archives without storages: nobody asks
};

// The CRCs of an archive's items, which begin at `first` of the file's.
class ShiftedCrcs : public ItemCrcs {
 public:
  ShiftedCrcs(const ItemCrcs& all, uint64_t first) : all_(all), first_(first) {}
  uint32_t crc32(uint64_t item) const override { return all_.crc32(first_ + item); }

 private:
  const ItemCrcs& all_;
  uint64_t first_;
};

// ---- __<rank>_0.distcp

// Layout items are the plan's items, but for values whose archive is kept: those give theirs.
class RankFile : public FileLayout {
 public:
  RankFile(std::shared_ptr<const DcpPlan> plan, int64_t rank)
      : FileLayout(dcp_file_name(rank)), plan_(std::move(plan)), rank_(rank), items_(plan_->rank(rank)) {
    uint64_t first = 0;
    for (uint32_t v = 0; v < items_.values.size(); ++v) {
      const auto& archive = plan_->value(items_.values[v]).archive;
      if (archive) archives_.push_back({first + v, v});
      if (archive) first += archive->item_count() - 1;
    }
    extra_ = first;
  }

  uint64_t size() const override { return items_.offsets.back(); }
  uint64_t item_count() const override { return items_.offsets.size() - 1 + extra_; }
  bool needs_crc32() const override { return !items_.tensors.empty() || !archives_.empty(); }
  int rank() const override { return static_cast<int>(rank_); }

  uint64_t item_offset(uint64_t item) const override {
    const Place p = place(item);
    return items_.offsets[p.index] + (p.archive ? p.archive->item_offset(p.inner) : 0);
  }

  void segments(uint64_t item, SegmentList& out) const override {
    out.segments.clear();
    const Place p = place(item);
    const uint64_t begin = items_.offsets[p.index];
    if (p.archive) {
      p.archive->segments(p.inner, out);
      for (Segment& s : out.segments) s.offset += begin;
    } else if (p.index < items_.values.size()) {
      add(out, Segment::Kind::rendered, begin, items_.offsets[p.index + 1] - begin, 0);
    } else {
      tensor_segments(p.index, begin, out);
    }
  }

  void render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const override {
    const Place p = place(item);
    if (p.archive) {
      Segment inner = segment;
      inner.offset -= items_.offsets[p.index];
      const NoCrcs none;
      const ShiftedCrcs shifted(crcs ? *crcs : none, item - p.inner);
      p.archive->render(p.inner, inner, &shifted, out);
    } else if (p.index < items_.values.size()) {
      render_value(plan_->value(items_.values[p.index]), out);
    } else {
      const DcpPlannedTensor& tensor = plan_->tensor(tensor_number(p.index));
      const DType dtype = plan_->checkpoint().tensors[tensor.tensor].dtype;
      const ChunkBox box(*plan_, tensor, chunk_of(tensor));
      if (segment.part == 0) write_tensor_item_prefix(dtype, box.size(), out);
      else write_tensor_item_suffix(dtype, box.size(), segment.kind == Segment::Kind::rendered_late ? crcs->crc32(item) : 0, out);
    }
  }

 private:
  struct Archive {
    uint64_t first_item;      // of the layout
    uint32_t index;           // among the rank's items
  };
  struct Place {
    uint64_t index;           // among the rank's items
    uint64_t inner = 0;       // item of the archive
    const TorchArchiveLayout* archive = nullptr;
  };

  Place place(uint64_t item) const {
    const auto after = std::upper_bound(archives_.begin(), archives_.end(), item, [](uint64_t i, const Archive& a) { return i < a.first_item; });
    if (after == archives_.begin()) return {item};
    const Archive& a = after[-1];
    const TorchArchiveLayout& archive = *plan_->value(items_.values[a.index]).archive;
    const uint64_t inner = item - a.first_item;
    if (inner < archive.item_count()) return {a.index, inner, &archive};
    return {a.index + 1 + inner - archive.item_count()};
  }

  uint32_t tensor_number(uint64_t index) const { return items_.tensors[index - items_.values.size()]; }
  uint32_t chunk_of(const DcpPlannedTensor& tensor) const { return static_cast<uint32_t>(rank_ - tensor.first_rank); }

  static void add(SegmentList& out, Segment::Kind kind, uint64_t offset, uint64_t length, uint32_t part) {
    Segment s;
    s.kind = kind;
    s.offset = offset;
    s.length = length;
    s.part = part;
    out.segments.push_back(s);
  }

  void tensor_segments(uint64_t index, uint64_t begin, SegmentList& out) const {
    const DcpPlannedTensor& tensor = plan_->tensor(tensor_number(index));
    const TensorInfo& info = plan_->checkpoint().tensors[tensor.tensor];
    const size_t dims = info.shape.size();
    out.dims.resize(2 * dims);
    const std::span<int64_t> offset = std::span(out.dims).first(dims), size = std::span(out.dims).subspan(dims);
    plan_->box(tensor, chunk_of(tensor), offset, size);
    const TensorItemFrame frame = frame_tensor_item(info.dtype, size);
    add(out, Segment::Kind::rendered, begin, frame.prefix, 0);
    if (frame.data > 0) {
      add(out, Segment::Kind::tensor, begin + frame.prefix, frame.data, 0);
      out.segments.back().tensor = tensor.tensor;
      out.segments.back().box = {offset, size};
    }
    add(out, frame.data > 0 ? Segment::Kind::rendered_late : Segment::Kind::rendered, begin + frame.prefix + frame.data, frame.suffix, 1);
  }

  void render_value(const DcpPlannedValue& value, std::string& out) const {
    const TorchArchiveLayout archive = plan_->make_archive(value);
    const NoCrcs none;
    SegmentList list;
    for (uint64_t i = 0; i < archive.item_count(); ++i) {
      archive.segments(i, list);
      for (const Segment& s : list.segments) archive.render(i, s, &none, out);
    }
  }

  std::shared_ptr<const DcpPlan> plan_;
  int64_t rank_;
  const DcpPlan::Rank& items_;
  std::vector<Archive> archives_;
  uint64_t extra_ = 0;        // items that archives have beyond one
};

// ---- .metadata

class MetadataFile : public FileLayout {
 public:
  explicit MetadataFile(std::shared_ptr<const DcpPlan> plan) : FileLayout(std::string(kDcpMetadata)), plan_(std::move(plan)) {
    cut_sections();
    offsets_.reserve(sections_.size() + 1);
    std::string text;
    uint64_t at = 0;
    for (const Section& s : sections_) {
      offsets_.push_back(at);
      text.clear();
      render_section(s, text);
      at += text.size();
    }
    offsets_.push_back(at);
  }

  uint64_t size() const override { return offsets_.back(); }
  uint64_t item_count() const override { return sections_.size(); }
  uint64_t item_offset(uint64_t item) const override { return offsets_[item]; }

  void segments(uint64_t item, SegmentList& out) const override {
    out.segments.clear();
    Segment s;
    s.offset = offsets_[item];
    s.length = offsets_[item + 1] - offsets_[item];
    out.segments.push_back(s);
  }

  void render(uint64_t item, const Segment&, const ItemCrcs*, std::string& out) const override { render_section(sections_[item], out); }

 private:
  static constexpr uint64_t kSectionRows = 2048;
  enum class Kind : uint8_t { begin, entries, end_entries, paths, end_paths, items, end };
  struct Section {
    Kind kind;
    uint32_t first = 0, last = 0;   // names; items of the rank
    int64_t rank = 0;
  };

  // Calls with ranges of [0, count) that weigh about kSectionRows each.
  template <class Weight, class Cut>
  static void cut(uint32_t count, Weight&& weight, Cut&& section) {
    uint64_t sum = 0;
    uint32_t first = 0;
    for (uint32_t i = 0; i < count; ++i) {
      sum += weight(i);
      if (sum < kSectionRows && i + 1 < count) continue;
      section(first, i + 1);
      first = i + 1;
      sum = 0;
    }
  }

  void cut_sections() {
    const auto names = static_cast<uint32_t>(plan_->state().leaves().size());
    const auto chunks = [this](uint32_t name) { return plan_->tensor_of(name) == kNoDcpName ? 1 : plan_->tensor(plan_->tensor_of(name)).chunks; };
    sections_.push_back({Kind::begin});
    cut(names, chunks, [this](uint32_t first, uint32_t last) { sections_.push_back({Kind::entries, first, last}); });
    sections_.push_back({Kind::end_entries});
    cut(names, [](uint32_t) { return 1; }, [this](uint32_t first, uint32_t last) { sections_.push_back({Kind::paths, first, last}); });
    sections_.push_back({Kind::end_paths});
    for (int64_t r = 0; r < plan_->world_size(); ++r) {
      const auto items = static_cast<uint32_t>(plan_->rank(r).offsets.size() - 1);
      cut(items, [](uint32_t) { return 1; }, [this, r](uint32_t first, uint32_t last) { sections_.push_back({Kind::items, first, last, r}); });
    }
    sections_.push_back({Kind::end});
  }

  void render_section(const Section& s, std::string& out) const {
    DcpMetadataWriter writer(plan_->state().leaves().size(), out);
    switch (s.kind) {
      case Kind::begin: return writer.begin();
      case Kind::end_entries: return writer.end_state_dict();
      case Kind::end_paths: return writer.end_paths();
      case Kind::end: return writer.end();
      case Kind::items: return items(s, writer);
      default: break;
    }
    writer.begin_items();
    for (uint32_t name = s.first; name < s.last; ++name) {
      const DcpSavedLeaf& leaf = plan_->state().leaves()[name];
      if (s.kind == Kind::paths) writer.path(name, plan_->state().path(leaf));
      else entry(name, leaf, writer);
    }
    writer.end_items();
  }

  void entry(uint32_t name, const DcpSavedLeaf& leaf, DcpMetadataWriter& writer) const {
    if (plan_->tensor_of(name) == kNoDcpName) return writer.bytes(name, leaf.fqn);
    const DcpPlannedTensor& tensor = plan_->tensor(plan_->tensor_of(name));
    const TensorInfo& info = plan_->checkpoint().tensors[tensor.tensor];
    writer.tensor(name, leaf.fqn, info.dtype, info.shape);
    for (uint32_t c = 0; c < tensor.chunks; ++c) {
      const ChunkBox box(*plan_, tensor, c);
      writer.chunk(box.offset(), box.size());
    }
    writer.end_tensor();
  }

  void items(const Section& s, DcpMetadataWriter& writer) const {
    const DcpPlan::Rank& rank = plan_->rank(s.rank);
    const auto file = static_cast<uint64_t>(s.rank);
    if (s.first == 0) writer.file(file, dcp_file_name(s.rank));
    writer.begin_items();
    for (uint32_t i = s.first; i < s.last; ++i) {
      const uint64_t offset = rank.offsets[i], length = rank.offsets[i + 1] - offset;
      if (i < rank.values.size()) {
        writer.byte_item(plan_->value(rank.values[i]).name);
        writer.place(file, offset, length);
        continue;
      }
      const DcpPlannedTensor& tensor = plan_->tensor(rank.tensors[i - rank.values.size()]);
      const auto chunk = static_cast<uint32_t>(s.rank - tensor.first_rank);
      const ChunkBox box(*plan_, tensor, chunk);
      for (uint32_t name = tensor.first_name; name != kNoDcpName; name = plan_->next_name(name)) {
        writer.tensor_item(name, chunk, box.offset());
        writer.place(file, offset, length);
      }
    }
    writer.end_items();
  }

  std::shared_ptr<const DcpPlan> plan_;
  std::vector<Section> sections_;
  std::vector<uint64_t> offsets_;
};

}  // namespace

FilePlan lay_out_dcp(const Checkpoint& checkpoint, const TargetPlacement& placement) {
  const auto plan = std::make_shared<const DcpPlan>(checkpoint, placement);
  FilePlan files;
  for (int64_t r = 0; r < plan->world_size(); ++r) files.push_back(std::make_unique<RankFile>(plan, r));
  files.push_back(std::make_unique<MetadataFile>(plan));
  return files;
}

}  // namespace fsdpctl
