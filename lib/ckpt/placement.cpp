#include "lib/ckpt/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "lib/ckpt/parts.h"

namespace fsdpctl {
namespace {

// The distinct boxes of a tensor that hold elements. Pieces come sorted by offset, so equal boxes are neighbours but for empty
// ones, which are left out.
struct Boxes {
  std::vector<const Box*> distinct;
  size_t stored = 0;
};

Boxes boxes_of(const Checkpoint& checkpoint, TensorIndex t) {
  Boxes boxes;
  boxes.distinct.reserve(checkpoint.pieces_of(t).size());
  for (const Piece& piece : checkpoint.pieces_of(t)) {
    if (is_empty(piece.box)) continue;
    ++boxes.stored;
    if (boxes.distinct.empty() || !equal(*boxes.distinct.back(), piece.box)) boxes.distinct.push_back(&piece.box);
  }
  return boxes;
}

// Do the boxes, all of them full in every other dimension, follow each other along `dim`?
bool cut_along(Dims shape, const std::vector<const Box*>& boxes, size_t dim) {
  int64_t next = 0;
  for (const Box* box : boxes) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d != dim && box->size[d] != shape[d]) return false;
    }
    if (box->offset[dim] != next) return false;
    next += box->size[dim];
  }
  return next == shape[dim];
}

bool flat_ranges(Dims shape, const std::vector<const Box*>& boxes) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  for (const Box* box : boxes) {
    const auto start = flat_start(shape, *box);
    if (!start) return false;
    runs.emplace_back(*start, count(*box));
  }
  std::sort(runs.begin(), runs.end());
  uint64_t next = 0;
  for (const auto& run : runs) {
    if (run.first != next) return false;
    next += run.second;
  }
  return next == count(shape);
}

// Are the boxes all cells of one grid? Then the product of the cuts is their number, and the cuts of each dimension tile it.
std::optional<uint64_t> grid_dims(Dims shape, const std::vector<const Box*>& boxes) {
  uint64_t cut_dims = 0, cells = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::pair<int64_t, int64_t>> cuts;
    for (const Box* box : boxes) cuts.emplace_back(box->offset[d], box->size[d]);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    int64_t next = 0;
    for (const auto& cut : cuts) {
      if (cut.first != next) return std::nullopt;
      next += cut.second;
    }
    if (next != shape[d]) return std::nullopt;
    if (cuts.size() > 1 && d < 64) cut_dims |= uint64_t{1} << d;
    cells *= cuts.size();
    if (cells > boxes.size()) return std::nullopt;
  }
  return cut_dims;   // distinct boxes are distinct cells, so there are as many: every cell once
}

}  // namespace

StoredPlacement stored_placement(const Checkpoint& checkpoint, TensorIndex tensor) {
  StoredPlacement placement;
  const Dims shape = checkpoint.tensors[tensor].shape;
  const Boxes boxes = boxes_of(checkpoint, tensor);
  if (boxes.distinct.empty()) return placement;   // no elements: nothing is cut
  placement.pieces = static_cast<uint32_t>(boxes.distinct.size());
  placement.replicas = static_cast<uint32_t>(boxes.stored / boxes.distinct.size());
  if (boxes.distinct.size() == 1) {
    const bool whole = equal(boxes.distinct.front()->size, shape);
    if (!whole) placement.kind = StoredPlacement::Kind::irregular;
    return placement;
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (!cut_along(shape, boxes.distinct, d)) continue;
    placement.kind = StoredPlacement::Kind::shard;
    placement.dim = static_cast<int>(d);
    if (d < 64) placement.cut_dims = uint64_t{1} << d;
    return placement;
  }
  placement.kind = StoredPlacement::Kind::irregular;
  if (const auto dims = grid_dims(shape, boxes.distinct)) {
    placement.kind = StoredPlacement::Kind::grid;
    placement.cut_dims = *dims;
  } else if (flat_ranges(shape, boxes.distinct)) {
    placement.kind = StoredPlacement::Kind::flat;
  }
  return placement;
}

std::string placement_text(const StoredPlacement& placement) {
  switch (placement.kind) {
    case StoredPlacement::Kind::whole: return "Replicate";
    case StoredPlacement::Kind::shard: return fmt::format("Shard({})", placement.dim);
    case StoredPlacement::Kind::flat: return "Flat";
    case StoredPlacement::Kind::irregular: return "irregular";
    case StoredPlacement::Kind::grid: break;
  }
  std::string text;
  for (unsigned d = 0; d < 64; ++d) {
    if ((placement.cut_dims >> d & 1) != 0) text += fmt::format("{}Shard({})", text.empty() ? "" : " x ", d);
  }
  return text;
}

bool TargetPlacement::holds(const Checkpoint&, TensorIndex t, int64_t rank) const {
  const Row& r = rows_[t];
  return r.dim >= 0 ? rank < world_size_ : rank == r.holder;
}

void TargetPlacement::box(const Checkpoint& checkpoint, TensorIndex t, int64_t rank, std::span<int64_t> offset,
                          std::span<int64_t> size) const {
  const Dims shape = checkpoint.tensors[t].shape;
  std::fill_n(offset.begin(), shape.size(), 0);
  std::copy(shape.begin(), shape.end(), size.begin());
  const int16_t dim = rows_[t].dim;
  if (dim < 0) return;
  const auto [begin, extent] = chunk_extent(shape[static_cast<size_t>(dim)], world_size_, rank);
  offset[static_cast<size_t>(dim)] = begin;
  size[static_cast<size_t>(dim)] = extent;
}

namespace {

constexpr int16_t kWhole = -1;

// Decides, tensor by tensor, along which dimension it is cut.
class Cutter {
 public:
  explicit Cutter(const Checkpoint& checkpoint) : checkpoint_(checkpoint), parts_(find_parts(checkpoint)) {
    for (const OptimizerInfo& o : parts_.optimizers) {
      for (const OptimizerGroup& group : o.groups) parameters_.insert(group.params.begin(), group.params.end());
      parameters_.insert(o.parameters.begin(), o.parameters.end());
      names_known_ = names_known_ || (o.named && !o.parameters.empty());
    }
  }

  // Shard(d) or kWhole for each tensor.
  std::vector<int16_t> cuts() {
    std::vector<int16_t> cuts(checkpoint_.tensors.size(), kWhole);
    find_cut_source();
    for (const LeafInfo& leaf : parts_.leaves) {
      if (leaf.part == Part::model && leaf.tensor != kNoTensor) cut_model(leaf, cuts);
    }
    for (const LeafInfo& leaf : parts_.leaves) {
      if (leaf.part == Part::optimizer && leaf.tensor != kNoTensor && !leaf.field.empty()) cut_field(leaf, cuts);
    }
    return cuts;
  }

 private:
  bool can_cut(TensorIndex t) const {
    const TensorInfo& info = checkpoint_.tensors[t];
    return !info.shape.empty() && info.role == Role::tensor && count(info.shape) > 0;
  }

  int16_t stored_cut(TensorIndex t) const {
    const StoredPlacement stored = stored_placement(checkpoint_, t);
    return stored.kind == StoredPlacement::Kind::shard ? static_cast<int16_t>(stored.dim) : int16_t{0};
  }

  bool stored_whole(TensorIndex t) const { return stored_placement(checkpoint_, t).kind == StoredPlacement::Kind::whole; }

  void find_cut_source() {
    for (const LeafInfo& leaf : parts_.leaves) {
      if (leaf.part != Part::model || leaf.tensor == kNoTensor || leaf.alias) continue;
      if (!stored_whole(leaf.tensor)) source_is_cut_ = true;
    }
  }

  bool is_parameter(const LeafInfo& leaf) const {
    if (parameters_.count(leaf.fqn) != 0 || leaf.value->as_tensor().parameter) return true;
    const TensorInfo& info = checkpoint_.tensors[leaf.tensor];
    if (source_is_cut_) return !stored_whole(leaf.tensor);
    const DTypeKind kind = dtype_kind(info.dtype);
    if (kind == DTypeKind::integer || kind == DTypeKind::boolean) return false;
    return !names_known_ || info.shape.size() > 1;
  }

  // Of a tied tensor any of its names decides.
  void cut_model(const LeafInfo& leaf, std::vector<int16_t>& cuts) {
    shapes_.emplace(leaf.fqn, leaf.tensor);
    if (can_cut(leaf.tensor) && is_parameter(leaf)) cuts[leaf.tensor] = stored_cut(leaf.tensor);
  }

  // Fields of their parameter's shape go where it goes. Without the parameter (optimizer alone, ids) every field with dims is one.
  void cut_field(const LeafInfo& leaf, std::vector<int16_t>& cuts) {
    if (!can_cut(leaf.tensor)) return;
    const auto parameter = shapes_.find(leaf.fqn);
    if (parameter == shapes_.end()) {
      cuts[leaf.tensor] = stored_cut(leaf.tensor);
      return;
    }
    if (!equal(checkpoint_.tensors[parameter->second].shape, checkpoint_.tensors[leaf.tensor].shape)) return;
    const bool whole = stored_whole(leaf.tensor);
    cuts[leaf.tensor] = whole ? std::max<int16_t>(cuts[parameter->second], 0) : stored_cut(leaf.tensor);
  }

  const Checkpoint& checkpoint_;
  Parts parts_;
  std::unordered_set<std::string_view> parameters_;           // that an optimizer names
  std::unordered_map<std::string_view, TensorIndex> shapes_;  // of the model
  bool names_known_ = false;
  bool source_is_cut_ = false;
};

}  // namespace

TargetPlacement place(const Checkpoint& checkpoint, int64_t world_size) {
  if (world_size < 1 || world_size > kMaxWorldSize) {
    throw Error(Exit::usage, "world size out of range").saw(fmt::format("1 to {}", kMaxWorldSize), fmt::format("{}", world_size));
  }
  std::vector<TargetPlacement::Row> rows(checkpoint.tensors.size());
  if (world_size == 1) return TargetPlacement(world_size, std::move(rows));
  const std::vector<int16_t> cuts = Cutter(checkpoint).cuts();
  std::vector<uint64_t> load(static_cast<size_t>(world_size), 0);
  for (TensorIndex t = 0; t < rows.size(); ++t) {
    const TensorInfo& info = checkpoint.tensors[t];
    const uint64_t bytes = checkpoint.bytes_of(t);
    rows[t].dim = cuts[t];
    if (cuts[t] == kWhole) {
      const auto least = std::min_element(load.begin(), load.end());
      rows[t].holder = static_cast<int32_t>(least - load.begin());
      *least += bytes;
      continue;
    }
    const int64_t extent = info.shape[static_cast<size_t>(cuts[t])];
    const uint64_t slice = bytes / static_cast<uint64_t>(extent);
    for (int64_t rank = 0; rank < world_size; ++rank) {
      const int64_t held = chunk_extent(extent, world_size, rank).second;
      if (held == 0) break;
      load[static_cast<size_t>(rank)] += slice * static_cast<uint64_t>(held);
    }
  }
  return TargetPlacement(world_size, std::move(rows));
}

}  // namespace fsdpctl
