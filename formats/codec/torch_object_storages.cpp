// Storages of torch_object.h: what the pickle says of them, and where they are.
#include <fmt/format.h>

#include "formats/codec/torch_object.h"

namespace fsdpctl {
namespace {

// The number that a key is; UINT64_MAX for other keys, "00" among them.
uint64_t decimal(std::string_view key) {
  if (key.empty() || key.size() > 18 || (key[0] == '0' && key.size() > 1)) return UINT64_MAX;
  uint64_t number = 0;
  for (const char c : key) {
    if (c < '0' || c > '9') return UINT64_MAX;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number;
}

}  // namespace

Value TorchObjectHandler::persistent(const Value& id) {
  const auto bad = [&] { return wrong("storage is named in an unknown way", "persistent id"); };
  if (!id.is(Kind::tuple) || id.items().empty()) throw bad();
  const std::vector<Value>& field = id.items();
  const auto is_text = [](const Value& v) { return v.is(Kind::string) || v.is(Kind::bytes); };
  if (!is_text(field[0])) throw bad();
  // Legacy streams name classes with their source code; only the class counts.
  if (field[0].text() == "module" && field.size() >= 2) return field[1];
  if (field[0].text() != "storage" || field.size() < 5 || field.size() > 6 || !is_text(field[2])) throw bad();
  uint32_t range = range_number(field[2].text(), field[1], field[4]);
  if (field.size() == 6 && !field[5].is(Kind::none)) range = part_of_range(range, field[5]);
  return ranges_[range].leaf;
}

uint32_t TorchObjectHandler::range_number(std::string_view key, const Value& class_value, const Value& numel) {
  const uint32_t known = id_of(class_value);
  if (known < kFirstClass) {
    throw Error(Exit::unsupported, "storage has an unknown class").found_only(global_name(class_value));
  }
  const StorageClass type = classes_[known - kFirstClass].type;
  const std::string_view class_name = classes_[known - kFirstClass].name;
  const auto impossible = [&] {
    return Error(Exit::unsupported, "storage claims an impossible size")
        .found_only(fmt::format("{} elements of {}", key_text(numel), class_name));
  };
  if (numel.is(Kind::big_integer)) throw impossible();
  if (!numel.is(Kind::integer) || numel.as_integer() < 0) throw wrong("storage has no size", key);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(numel.as_integer()), item_size(type.dtype), &bytes) ||
      bytes > static_cast<uint64_t>(INT64_MAX)) {
    throw impossible();
  }
  if (const TorchStorage* s = find_storage(key)) {
    if (s->dtype != type.dtype || s->bytes != bytes) throw wrong("storage is used with two types or sizes", key);
    return s->range;
  }
  const auto number = static_cast<uint32_t>(storages_.size());
  const auto range = static_cast<uint32_t>(ranges_.size());
  storages_.push_back({checkpoint_.arena->store(key), class_name, type.dtype, bytes, range});
  if (decimal(key) != number) by_key_.emplace(storages_.back().key, number);
  leaf_of(number, 0, bytes);
  return range;
}

// Keys count from 0 in files of torch 1.9 and newer, so that most need no table.
const TorchStorage* TorchObjectHandler::find_storage(std::string_view key) const {
  const uint64_t number = decimal(key);
  if (number < storages_.size() && storages_[number].key == key) return &storages_[number];
  const auto known = by_key_.find(key);
  return known == by_key_.end() ? nullptr : &storages_[known->second];
}

Value TorchObjectHandler::leaf_of(uint32_t storage, uint64_t begin, uint64_t bytes) {
  Range range{storage, begin, bytes, Value::storage(static_cast<TensorIndex>(ranges_.size()), {}), kNoTensor};
  ranges_.push_back(std::move(range));
  return ranges_.back().leaf;
}

// `view`: (key, offset, size) in elements, from very old legacy streams.
uint32_t TorchObjectHandler::part_of_range(uint32_t whole, const Value& view) {
  const Range all = ranges_[whole];
  const uint64_t item = item_size(storages_[all.storage].dtype);
  if (!view.is(Kind::tuple) || view.items().size() != 3 || !view.items()[0].is(Kind::string) ||
      !view.items()[1].is(Kind::integer) || !view.items()[2].is(Kind::integer)) {
    throw wrong("view of a storage is described in an unknown way", storages_[all.storage].key);
  }
  const int64_t offset = view.items()[1].as_integer(), size = view.items()[2].as_integer();
  const uint64_t elements = all.bytes / item;
  if (offset < 0 || size < 0 || static_cast<uint64_t>(offset) > elements ||
      static_cast<uint64_t>(size) > elements - static_cast<uint64_t>(offset)) {
    throw wrong("view of a storage lies outside of it", storages_[all.storage].key);
  }
  const uint64_t begin = static_cast<uint64_t>(offset) * item, bytes = static_cast<uint64_t>(size) * item;
  const std::string_view key = view.items()[0].text();
  if (const auto known = views_by_key_.find(key); known != views_by_key_.end()) {
    const Range& r = ranges_[known->second];
    if (r.storage == all.storage && r.begin == begin && r.bytes == bytes) return known->second;
    throw wrong("view of a storage is used with two extents", key);
  }
  leaf_of(all.storage, begin, bytes);
  const auto number = static_cast<uint32_t>(ranges_.size() - 1);
  views_by_key_.emplace(checkpoint_.arena->store(key), number);
  return number;
}

void TorchObjectHandler::place(const std::vector<StoragePlace>& places,
                               const std::function<void(Piece&, size_t)>& encoded) {
  for (Range& range : ranges_) {
    if (range.leaf.mutable_node<StorageNode>().references.load() == 1) continue;   // only tensors used it
    auto& leaf = range.leaf.mutable_node<StorageNode>();
    if (places[range.storage].swap) {
      throw Error(Exit::unsupported, "big-endian storage inside an object that is kept as it is").at(name_)
          .found_only(std::string(storages_[range.storage].key));
    }
    leaf.storage_class = storages_[range.storage].class_name;
    const auto bytes = static_cast<int64_t>(range.bytes);
    leaf.index = checkpoint_.add_tensor(DType::uint8, Dims(&bytes, 1), Role::storage);
    Piece piece;
    piece.tensor = leaf.index;
    piece.rank = rank_;
    piece.box = {zeros_.first(1), checkpoint_.tensors[leaf.index].shape};
    piece.stored = DType::uint8;
    piece.offset = range.begin;
    piece.length = range.bytes;
    checkpoint_.add_piece(piece);
    piece_range_.push_back(static_cast<uint32_t>(&range - ranges_.data()));
  }

  std::vector<bool> covered(storages_.size());
  for (size_t i = 0; i < piece_range_.size(); ++i) {
    Piece& piece = checkpoint_.pieces[first_piece_ + i];
    const uint32_t storage = ranges_[piece_range_[i]].storage;
    const StoragePlace& place = places[storage];
    const bool whole = piece.offset == 0 && piece.length == storages_[storage].bytes;
    piece.source = place.source;
    piece.encoding = place.encoding;
    piece.swap = place.swap && swap_size(piece.stored) > 1;
    if (place.encoding == Encoding::item) {
      encoded(piece, storage);
      continue;
    }
    piece.offset += place.offset;
    if (whole && place.has_crc32) {
      piece.has_crc32 = true;
      piece.crc32 = place.crc32;
      covered[storage] = true;
    }
  }
  for (size_t s = 0; s < storages_.size(); ++s) {
    const StoragePlace& place = places[s];
    if (place.has_crc32 && !covered[s] && place.encoding == Encoding::raw) {
      checkpoint_.recorded_crcs.push_back({place.source, place.crc32, place.offset, storages_[s].bytes});
    }
  }
}

}  // namespace fsdpctl
