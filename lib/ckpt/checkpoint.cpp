#include "lib/ckpt/checkpoint.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "lib/ckpt/piece_check.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxDims = 64;   // PyTorch's own limit
constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

// Gives each tensor the path of its first leaf; further leaves become aliases.
class Namer : public TreeVisitor {
 public:
  Namer(Checkpoint& checkpoint, FindingSink& sink)
      : checkpoint_(checkpoint), sink_(sink), named_(checkpoint.tensors.size()) {}

  void leaf(std::string_view path, const Value& value) override {
    if (value.is(Kind::tensor)) {
      const TensorLeaf leaf = value.as_tensor();
      name(leaf.index, path, true);
      if (const Value attributes = value.tensor_attributes(); !attributes.is(Kind::none)) inside(path, attributes);
    } else if (may_hold_tensors(value)) {
      inside(path, value);
    }
  }

  void report_unnamed() const {
    for (size_t t = 0; t < named_.size(); ++t) {
      if (named_[t]) continue;
      sink_.report(error(Exit::damaged, "tensor is not in the tree").found_only(
          std::string(dtype_name(checkpoint_.tensors[t].dtype)) + " " + dims_text(checkpoint_.tensors[t].shape)));
    }
  }

 private:
  static bool may_hold_tensors(const Value& value) {
    return value.is_sequence() || value.is_mapping() || value.is(Kind::object) || value.is(Kind::storage) ||
           value.is(Kind::tensor);
  }

  void name(TensorIndex t, std::string_view path, bool leaf) {
    if (t >= named_.size()) throw Error(Exit::damaged, "tree refers to a tensor that is not there").key(std::string(path));
    if (!named_[t]) {
      named_[t] = true;
      std::string_view& key = checkpoint_.tensors[t].key;   // perhaps set by the format already
      if (key != path) key = checkpoint_.arena->store(path);
    } else if (leaf) {
      checkpoint_.aliases.push_back({std::string(path), t});
    }
  }

  // Tensors that no leaf shows: inside objects, counters, sets. Their keys extend the leaf's.
  void inside(std::string_view path, const Value& value) {
    if (value.is(Kind::tensor)) {
      name(value.as_tensor().index, path, false);
      return;
    }
    if (value.is(Kind::storage)) {
      name(value.node<StorageNode>().index, path, false);
      return;
    }
    if (!may_hold_tensors(value) || !seen_.insert(value.identity()).second) return;
    if (value.is_sequence()) {
      items(path, value.items());
    } else if (value.is_mapping()) {
      entries(path, value.entries());
      descend(path, "attributes", value.node<MappingNode>().attributes);
    } else {
      const auto& object = value.node<ObjectNode>();
      descend(path, "callable", object.callable);
      descend(path, "args", object.args);
      descend(path, "kwargs", object.kwargs);
      descend(path, "state", object.state);
      items(path, object.items);
      entries(path, object.entries);
    }
  }

  void descend(std::string_view path, std::string_view element, const Value& value) {
    if (!may_hold_tensors(value)) return;
    std::string longer(path);
    if (!longer.empty()) longer += '.';
    inside(longer += element, value);
  }

  void items(std::string_view path, const std::vector<Value>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (may_hold_tensors(values[i])) descend(path, std::to_string(i), values[i]);   // else no text for nothing
    }
  }

  void entries(std::string_view path, const std::vector<Entry>& list) {
    for (const Entry& e : list) {
      if (may_hold_tensors(e.value)) descend(path, key_text(e.key), e.value);
    }
  }

  Checkpoint& checkpoint_;
  FindingSink& sink_;
  std::vector<bool> named_;
  std::unordered_set<const void*> seen_;
};

// Are all keys different for sure? A table of hashes alone; "no" only means that somebody must look closer.
bool surely_different(const std::vector<TensorInfo>& tensors) {
  constexpr size_t kMaxProbes = 64;   // keys made to collide end in the slower way, not in a slow table
  size_t slots = 16;
  while (slots < 2 * tensors.size()) slots *= 2;
  std::vector<uint32_t> table(slots, 0);
  for (const TensorInfo& tensor : tensors) {
    const uint64_t hash = std::hash<std::string_view>()(tensor.key);
    const auto mark = static_cast<uint32_t>(hash >> 32) | 1;   // 0 is a free slot
    size_t probes = 0;
    for (size_t at = hash;; ++at) {
      uint32_t& slot = table[at & (slots - 1)];
      if (slot == mark || ++probes == kMaxProbes) return false;
      if (slot != 0) continue;
      slot = mark;
      break;
    }
  }
  return true;
}

// {"a.b": x, "a": {"b": y}} gives two tensors one key: what names them by it could mean either.
void report_equal_keys(const Checkpoint& checkpoint, FindingSink& sink) {
  if (surely_different(checkpoint.tensors)) return;
  std::vector<std::string_view> keys;
  for (const TensorInfo& tensor : checkpoint.tensors) keys.push_back(tensor.key);
  std::sort(keys.begin(), keys.end());
  for (size_t i = 1; i < keys.size(); ++i) {
    if (keys[i] != keys[i - 1] || (i > 1 && keys[i] == keys[i - 2])) continue;
    sink.report(warning("two tensors have the same key").key(std::string(keys[i])));
  }
}

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
  aliases.clear();
  Namer namer(*this, sink);
  walk_tree(tree, namer);
  namer.report_unnamed();
  report_equal_keys(*this, sink);

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
