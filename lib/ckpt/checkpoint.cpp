#include "lib/ckpt/checkpoint.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lib/ckpt/keys.h"
#include "lib/ckpt/piece_check.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxDims = 64;   // PyTorch's own limit
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

// False where the shape cannot be; the tensor is then kept as an empty one, so that nothing can trip over it.
bool check_shape(TensorInfo& tensor, Arena& arena, FindingSink& sink) {
  const std::optional<uint64_t> elements = checked_count(tensor.shape);
  if (elements && tensor.shape.size() <= kMaxDims && *elements <= kMaxBytes / item_size(tensor.dtype)) return true;
  Finding f = error(Exit::damaged, "shape of tensor is impossible");
  f.key(std::string(tensor.key));
  if (tensor.shape.size() > kMaxDims) {
    f.saw("at most 64 dims", std::to_string(tensor.shape.size()));
  } else {
    f.found_only(dims_text(tensor.shape));
  }
  sink.report(std::move(f));
  const int64_t none[] = {0};
  tensor.shape = arena.store(Dims(none));
  return false;
}

bool piece_before(const Piece& a, const Piece& b) {
  const auto compare = [](Dims x, Dims y) {
    return std::lexicographical_compare_three_way(x.begin(), x.end(), y.begin(), y.end());
  };
  if (const auto c = compare(a.box.offset, b.box.offset); c != 0) return c < 0;
  if (const auto c = compare(a.box.size, b.box.size); c != 0) return c < 0;
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.source != b.source) return a.source < b.source;
  return a.offset < b.offset;
}

// Moves pieces[order[i]] to i for all i, without a second copy of them.
void reorder(std::vector<Piece>& pieces, std::vector<PieceIndex>& order) {
  for (PieceIndex start = 0; start < order.size(); ++start) {
    if (order[start] == start) continue;
    const Piece first = pieces[start];
    PieceIndex to = start;
    while (order[to] != start) {
      pieces[to] = pieces[order[to]];
      to = std::exchange(order[to], to);
    }
    pieces[to] = first;
    order[to] = to;
  }
}

// Sorts by tensor (counting), then box offset, then rank, and tells each tensor its pieces.
void sort_pieces(Checkpoint& checkpoint) {
  std::vector<Piece>& pieces = checkpoint.pieces;
  for (TensorInfo& t : checkpoint.tensors) t.piece_count = 0;
  for (const Piece& p : pieces) ++checkpoint.tensors[p.tensor].piece_count;
  PieceIndex next = 0;
  std::vector<PieceIndex> end(checkpoint.tensors.size());
  for (size_t t = 0; t < checkpoint.tensors.size(); ++t) {
    checkpoint.tensors[t].first_piece = end[t] = next;
    next += checkpoint.tensors[t].piece_count;
  }
  std::vector<PieceIndex> order(pieces.size());
  for (PieceIndex p = 0; p < pieces.size(); ++p) order[end[pieces[p].tensor]++] = p;
  for (const TensorInfo& t : checkpoint.tensors) {
    if (t.piece_count < 2) continue;
    const auto begin = order.begin() + t.first_piece;
    const auto before = [&](PieceIndex a, PieceIndex b) { return piece_before(pieces[a], pieces[b]); };
    if (!std::is_sorted(begin, begin + t.piece_count, before)) std::sort(begin, begin + t.piece_count, before);
  }
  reorder(pieces, order);
}

}  // namespace

TensorIndex Checkpoint::add_tensor(DType dtype, Dims shape, Role role) {
  if (tensors.size() >= kNoTensor) throw Error(Exit::unsupported, "checkpoint has too many tensors");
  TensorInfo& tensor = tensors.emplace_back();
  tensor.dtype = dtype;
  tensor.shape = arena->store(shape);
  tensor.role = role;
  return static_cast<TensorIndex>(tensors.size() - 1);
}

void Checkpoint::add_piece(Piece piece) {
  if (pieces.size() >= std::numeric_limits<PieceIndex>::max()) {
    throw Error(Exit::unsupported, "checkpoint has too many pieces");
  }
  pieces.push_back(piece);
}

void Checkpoint::finish(FindingSink& sink) {
  name_tensors(*this, sink);

  sort_pieces(*this);   // first: checks in this order find what they need in the cache
  size_t kept = 0;
  for (TensorInfo& tensor : tensors) {
    const bool possible = check_shape(tensor, *arena, sink);
    const size_t begin = std::exchange(tensor.first_piece, static_cast<PieceIndex>(kept));
    for (size_t p = begin; p < begin + tensor.piece_count; ++p) {
      if (possible && check_piece(*this, pieces[p], sink)) pieces[kept++] = pieces[p];
    }
    tensor.piece_count = static_cast<uint32_t>(kept - tensor.first_piece);
  }
  pieces.resize(kept);   // what is left can be read without further checks
}

uint64_t Checkpoint::bytes_of(TensorIndex t) const { return count(tensors[t].shape) * item_size(tensors[t].dtype); }

uint64_t Checkpoint::logical_bytes() const {
  uint64_t sum = 0;   // views may repeat their storage, so the sum of what exists need not fit
  for (TensorIndex t = 0; t < tensors.size(); ++t) {
    const uint64_t bytes = bytes_of(t);
    sum = bytes > std::numeric_limits<uint64_t>::max() - sum ? std::numeric_limits<uint64_t>::max() : sum + bytes;
  }
  return sum;
}

std::optional<TensorIndex> Checkpoint::find(std::string_view key) const {
  for (TensorIndex t = 0; t < tensors.size(); ++t) {
    if (tensors[t].key == key) return t;
  }
  for (const Alias& alias : aliases) {
    if (alias.key == key) return alias.tensor;
  }
  return std::nullopt;
}

}  // namespace fsdpctl
