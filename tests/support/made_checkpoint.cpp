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

uint64_t made_element(TensorIndex tensor, uint64_t index) {
  const uint64_t x = (index + 1) * 0x9E3779B97F4A7C15u + tensor * 0xC2B2AE3D27D4EB4Fu;
  // No NaN, and values that a cast to bfloat16 changes: bits as of a float32 in [1, 2), twice.
  const uint64_t low = 0x3F800000u | (x >> 41);
  return low << 32 | low;
}

namespace {

// The bytes of one piece, row-major.
std::string piece_bytes(const Checkpoint& c, const Piece& piece) {
  const Dims shape = c.tensors[piece.tensor].shape;
  std::vector<int64_t> strides(shape.size()), at(shape.size(), 0);
  row_major_strides(shape, strides);
  std::string bytes;
  for (uint64_t n = count(piece.box); n > 0; --n) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) flat += (piece.box.offset[d] + at[d]) * strides[d];
    uint64_t value = made_element(piece.tensor, static_cast<uint64_t>(flat));
    if (piece.stored == DType::boolean) value &= 1;
    for (uint32_t b = 0; b < item_size(piece.stored); ++b) bytes += static_cast<char>(value >> (8 * (b % 8)) & 0xff);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < piece.box.size[d]) break;
      at[d] = 0;
    }
  }
  return bytes;
}

}  // namespace

void MadeCheckpoint::store(const std::string& directory) {
  std::string data;
  for (Piece& piece : checkpoint.pieces) {
    const std::string bytes = piece_bytes(checkpoint, piece);
    piece.offset = data.size();
    piece.length = bytes.size();
    data += bytes;
  }
  write_new_file(join_path(directory, "made.bin"), data);
  checkpoint.format = "made";
  checkpoint.source = Source::open(directory);
  checkpoint.data_files = {"made.bin"};
  checkpoint.metadata_file = "made.bin";
  const SourceIndex index = checkpoint.source->add("made.bin");
  for (Piece& piece : checkpoint.pieces) piece.source = index;
  FindingSink strict;
  checkpoint.finish(strict);
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
