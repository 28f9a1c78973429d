#include "tests/support/made_checkpoint.h"

#include <algorithm>
#include <tuple>

namespace fsdpctl {

Value MadeCheckpoint::tensor(const std::string& key, std::vector<int64_t> shape, DType dtype) {
  const std::vector<int64_t> zeros(shape.size(), 0);
  return tensor(key, shape, {{zeros, shape, 0}}, dtype);
}

Value MadeCheckpoint::tensor(const std::string& key, std::vector<int64_t> shape, const std::vector<MadePiece>& pieces, DType dtype) {
  Checkpoint& c = checkpoint;
  TensorInfo info;
  info.key = c.arena->store(key);
  info.shape = c.arena->store(Dims(shape));
  info.dtype = dtype;
  info.first_piece = static_cast<PieceIndex>(c.pieces.size());
  info.piece_count = static_cast<uint32_t>(pieces.size());
  const auto index = static_cast<TensorIndex>(c.tensors.size());
  for (const MadePiece& made : pieces) {
    Piece piece;
    piece.tensor = index;
    piece.rank = made.rank;
    piece.stored = dtype;
    piece.box = {c.arena->store(Dims(made.offset)), c.arena->store(Dims(made.size))};
    c.pieces.push_back(piece);
    c.world_size = std::max<int64_t>(c.world_size, made.rank + 1);
  }
  c.tensors.push_back(info);
  return Value::tensor({index, false, false});
}

Value MadeCheckpoint::shard(const std::string& key, std::vector<int64_t> shape, int64_t world_size, size_t dim, DType dtype) {
  std::vector<MadePiece> pieces;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    MadePiece piece{std::vector<int64_t>(shape.size(), 0), shape, static_cast<int>(rank)};
    std::tie(piece.offset[dim], piece.size[dim]) = chunk_extent(shape[dim], world_size, rank);
    pieces.push_back(piece);
  }
  return tensor(key, shape, pieces, dtype);
}

Value dict(const MadeEntries& entries) {
  std::vector<Entry> made;
  for (const auto& entry : entries) made.push_back({Value::string(entry.first), entry.second});
  return Value::mapping(Kind::dict, std::move(made));
}

Value list(std::vector<Value> items) { return Value::sequence(Kind::list, std::move(items)); }

Value names(const std::vector<std::string>& texts) {
  std::vector<Value> items;
  for (const std::string& text : texts) items.push_back(Value::string(text));
  return list(std::move(items));
}

}  // namespace fsdpctl
