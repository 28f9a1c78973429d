#include "formats/safetensors_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lib/base/shell_quoted.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {
namespace {

// Item 0 is the header, item i the tensor at position i - 1 of the data.
class SafetensorsLayout : public FileLayout {
 public:
  SafetensorsLayout(std::string path, int rank, SafetensorsMetadata metadata, const std::vector<SafetensorsBox>& boxes,
                    std::shared_ptr<const void> owner)
      : FileLayout(std::move(path)), rank_(rank), metadata_(std::move(metadata)), owner_(std::move(owner)) {
    entries_.reserve(boxes.size());
    places_.reserve(boxes.size());
    for (const SafetensorsBox& b : boxes) {
      entries_.push_back({b.name, b.dtype, b.box.size, 0, count(b.box) * item_size(b.dtype)});
      places_.push_back({b.tensor, b.box.offset});
    }
    order_data();
    std::string header;
    write_safetensors_header(metadata_, entries_, header);
    header_size_ = header.size();
    if (header_size_ > kMaxSafetensorsHeader) {
      throw Error(Exit::refused, "safetensors header would be longer than readers accept").at(this->path())
          .saw(fmt::format("at most {} bytes", kMaxSafetensorsHeader), fmt::format("{}", header_size_));
    }
  }

  uint64_t size() const override { return header_size_ + data_size_; }
  uint64_t item_count() const override { return 1 + entries_.size(); }
  int rank() const override { return rank_; }

  uint64_t item_offset(uint64_t item) const override {
    if (item == 0) return 0;
    return item > order_.size() ? size() : header_size_ + entries_[order_[item - 1]].begin;
  }

  void segments(uint64_t item, SegmentList& out) const override {
    out.segments.assign(1, Segment{});
    Segment& segment = out.segments.front();
    segment.offset = item_offset(item);
    if (item == 0) {
      segment.length = header_size_;
      return;
    }
    const uint32_t i = order_[item - 1];
    segment.kind = Segment::Kind::tensor;
    segment.length = entries_[i].length;
    segment.tensor = places_[i].tensor;
    segment.box = {places_[i].offset, entries_[i].shape};
  }

  void render(uint64_t, const Segment&, const ItemCrcs*, std::string& out) const override {
    write_safetensors_header(metadata_, entries_, out);
  }

 private:
  struct Place {
    TensorIndex tensor;
    Dims offset;
  };

  // Dtypes of large alignment first, then names: as the header is a multiple of 64 long, every tensor is aligned.
  void order_data() {
    order_.resize(entries_.size());
    std::iota(order_.begin(), order_.end(), 0u);
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      const SafetensorsEntry &x = entries_[a], &y = entries_[b];
      const int dx = safetensors_dtype_order(x.dtype), dy = safetensors_dtype_order(y.dtype);
      return dx != dy ? dx > dy : x.name < y.name;
    });
    for (const uint32_t i : order_) {
      entries_[i].begin = data_size_;
      data_size_ += entries_[i].length;
    }
  }

  int rank_;
  SafetensorsMetadata metadata_;
  std::shared_ptr<const void> owner_;        // of names and boxes
  std::vector<SafetensorsEntry> entries_;    // in the order of the header
  std::vector<Place> places_;                // beside entries_
  std::vector<uint32_t> order_;              // of the data
  uint64_t header_size_ = 0, data_size_ = 0;
};

}  // namespace

std::unique_ptr<FileLayout> safetensors_layout(std::string path, int rank, SafetensorsMetadata metadata,
                                               const std::vector<SafetensorsBox>& boxes, std::shared_ptr<const void> owner) {
  return std::make_unique<SafetensorsLayout>(std::move(path), rank, std::move(metadata), boxes, std::move(owner));
}

void check_safetensors_dtypes(const Checkpoint& checkpoint, FindingSink& sink) {
  for (const TensorInfo& info : checkpoint.tensors) {
    if (info.role != Role::tensor) continue;
    const bool no_row = info.dtype == DType::float4_e2m1fn_x2 && info.shape.empty();
    if (!no_row && !safetensors_dtype(info.dtype).empty()) continue;
    sink.report(error(Exit::refused, no_row ? "safetensors cannot hold a float4 tensor without dimensions"
                                            : "safetensors has no such dtype")
                    .key(std::string(info.key)).found_only(std::string(dtype_name(info.dtype)))
                    .try_("--drop " + shell_quoted(std::string(info.key))));
  }
}

}  // namespace fsdpctl
