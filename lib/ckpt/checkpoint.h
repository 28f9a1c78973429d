// Checkpoint: any checkpoint, whoever wrote it, as one tree, a table of tensors and a table of pieces.
//
// The tree is the truth: one ordered Value whose leaves may name tensors. A tensor's key is the path of
// its first leaf, elements joined by dots; further leaves of the same tensor are aliases. A piece says
// where one box of a tensor lies on disk. Parts (model, optimizer, extra) are views: lib/ckpt/parts.h.
//
// A Checkpoint owns its arena and shares its Source; it is immutable after finish() except for
// resolve_pieces(), and then safe to read from any thread. Copies share arena, source and tree.
// Budget: 256 B per tensor and 128 B per piece, parsing included.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/arena.h"
#include "lib/base/box.h"
#include "lib/base/dtype.h"
#include "lib/base/finding.h"
#include "lib/base/value.h"
#include "lib/ckpt/source.h"

namespace fsdpctl {

using PieceIndex = uint32_t;

enum class Role : uint8_t {
  tensor,
  storage,    // the bytes of an inert object's storage, as uint8; not a tensor to the user
};

struct TensorInfo {
  std::string_view key;                 // in the arena; set by finish()
  Dims shape;                           // global shape, elements
  DType dtype = DType::float32;         // logical; differs from Piece::stored only after a cast
  Role role = Role::tensor;
  PieceIndex first_piece = 0;           // its pieces are contiguous, sorted by box offset, then rank
  uint32_t piece_count = 0;
};

enum class Encoding : uint8_t {
  raw,     // bytes at (source, offset), described by stored, strides and the flags
  item,    // an encoded item of `length` bytes: ItemResolver makes it raw
};

// One stored box of one tensor. Replicas are pieces with equal boxes on different ranks.
struct Piece {
  TensorIndex tensor = kNoTensor;
  int32_t rank = -1;                    // holder; -1: not recorded
  Box box;
  SourceIndex source = 0;
  Encoding encoding = Encoding::raw;
  DType stored = DType::float32;        // element type on disk
  bool swap : 1 = false;                // bytes are big-endian
  bool conj : 1 = false;                // lazily conjugated
  bool neg : 1 = false;                 // lazily negated
  bool has_crc32 : 1 = false;           // crc32 covers source bytes [offset, offset + length)
  uint32_t crc32 = 0;
  uint64_t offset = 0;                  // bytes; raw: where the box's first element lies
  uint64_t length = 0;                  // bytes; raw: of the storage from `offset` that the box uses
  Dims strides;                         // elements, raw only; empty means row-major in box.size
};

// A CRC-32 that a file records for bytes that no single piece covers exactly (a storage that several views share).
struct RecordedCrc {
  SourceIndex source = 0;
  uint32_t crc32 = 0;
  uint64_t offset = 0, length = 0;
};

struct Alias {
  std::string key;
  TensorIndex tensor = kNoTensor;
};

// Two places of the tree whose paths are the same text: {"a.b": x, "a": {"b": y}}, {0: x, "0": y}. What names one by it could mean
// either, so such a checkpoint can be looked at, but is neither written nor sealed.
struct EqualKeys {
  std::string key;                      // "a.b"
  std::string first, second;            // as Python writes them: ['a.b'], ['a']['b']
};

// Turns encoded items into raw bytes: in place in the same file (a torch item in a .distcp), or decoded
// once into a spool file (zstd, deflate). Implemented by formats.
class ItemResolver {
 public:
  virtual ~ItemResolver() = default;
  // `pieces` lie in one source, sorted by offset. Sets encoding raw and every raw field of each. Called
  // from several threads with disjoint pieces. Damage goes to `sink` (throws when strict) with the tensor's
  // key and the file; a piece that could not be resolved keeps Encoding::item.
  virtual void resolve(const struct Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const = 0;
};

struct Checkpoint {
  std::string format;                   // name of the Format that opened it: "dcp"
  std::string format_detail;            // "protocol 4, torch 2.9 or newer", shown by inspect
  std::shared_ptr<Source> source;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  Value tree;
  std::vector<TensorInfo> tensors;
  std::vector<Piece> pieces;
  std::vector<Alias> aliases;
  std::vector<EqualKeys> equal_keys;    // set by finish(); the first ones where there are very many
  std::vector<RecordedCrc> recorded_crcs;   // besides those of pieces
  std::shared_ptr<const ItemResolver> resolver;   // null where every piece is raw

  int64_t world_size = 1;
  bool world_size_inferred = false;     // 1 + highest rank referenced, not recorded
  std::string metadata_file;            // the file whose CRC-64 ties a manifest to this save
  std::vector<std::string> data_files;  // relative names that belong to it, metadata included
  std::vector<std::string> stale_files; // of this format, in the directory, but not referenced
  std::vector<std::pair<std::string, std::string>> facts;   // more lines for inspect: ("transform", "zstd")

  // ---- for formats, while opening
  TensorIndex add_tensor(DType dtype, Dims shape, Role role = Role::tensor);   // dims are copied to the arena
  void add_piece(Piece piece);                                                // dims must be in the arena
  // Names tensors and aliases by the tree, sorts and numbers pieces, checks counts, boxes inside their
  // tensor and every raw extent inside its file (Error damaged or unsupported through `sink`).
  // Tensors that the tree does not mention are an error, equal keys a warning.
  void finish(FindingSink& sink);

  // ---- for everyone
  std::span<const Piece> pieces_of(TensorIndex t) const {
    return {pieces.data() + tensors[t].first_piece, tensors[t].piece_count};
  }
  uint64_t bytes_of(TensorIndex t) const;         // logical bytes of one tensor
  uint64_t logical_bytes() const;                 // all tensors, replicas and aliases not counted
  std::optional<TensorIndex> find(std::string_view key) const;   // linear; aliases too
};

// Makes every piece of `tensors` raw (all when empty): sorted by file, in parallel over files and ranges.
void resolve_pieces(Checkpoint& checkpoint, int threads, FindingSink& sink);

// Calls visit(path text, leaf) for every leaf of the tree in order. Leaves are what expected.json calls
// tensors and values: mappings are descended (not counters, and not empty ones), lists and tuples where
// they hold a tensor or a mapping, everything else is a leaf.
class TreeVisitor {
 public:
  virtual ~TreeVisitor() = default;
  virtual void leaf(std::string_view path, const Value& value) = 0;
};
enum class PathStyle : uint8_t {
  dotted,         // a.b.0: what keys are
  subscripts,     // ['a']['b'][0]: tells apart what dots do not
};
void walk_tree(const Value& tree, TreeVisitor& visitor, PathStyle style = PathStyle::dotted);


}  // namespace fsdpctl
