#include "formats/dcp_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "formats/dcp_files.h"

namespace fsdpctl {
namespace {

// Chunks with the same offset are few, or somebody plays tricks.
constexpr size_t kMaxTwins = 64;

uint64_t end_of(const DcpStorage& row) { return row.offset + std::min(row.length, UINT64_MAX - row.offset); }

}  // namespace

DcpCatalog::DcpCatalog(Checkpoint& checkpoint, DcpItems& items, DcpContent& content, const std::string& name, FindingSink& sink)
    : checkpoint_(checkpoint), items_(items), content_(content), name_(name), sink_(sink) {}

Finding DcpCatalog::damage(const char* what, std::string_view fqn) const {
  Finding f = error(Exit::damaged, what);
  f.at(name_).key(std::string(fqn));
  return f;
}

void DcpCatalog::add(DcpMetadata metadata) {
  metadata_ = std::move(metadata);
  match_items();
  locate_items();
  report_files();
  check_overlaps();
  add_entries();
}

// ---- which item holds which chunk

// Numbers of an entry's chunks in the order of their offsets.
const std::vector<uint32_t>& DcpCatalog::sorted_chunks(uint32_t e) {
  std::vector<uint32_t>& sorted = sorted_[e];
  const DcpEntry& entry = metadata_.entries[e];
  if (sorted.empty()) {
    sorted.resize(entry.chunk_count);
    std::iota(sorted.begin(), sorted.end(), entry.first_chunk);
    std::stable_sort(sorted.begin(), sorted.end(), [&](uint32_t a, uint32_t b) {
      const int64_t *x = metadata_.chunks[a].offset, *y = metadata_.chunks[b].offset;
      return std::lexicographical_compare(x, x + entry.shape.size(), y, y + entry.shape.size());
    });
  }
  return sorted;
}

// By the offset; the index is only a hint where to look.
uint32_t DcpCatalog::find_chunk(uint32_t e, const DcpStorage& row) {
  const DcpEntry& entry = metadata_.entries[e];
  const size_t dims = entry.shape.size();
  if (!row.has_box || row.box_dims != dims) return kNone;
  const int64_t *begin = row.box_offset, *end = begin + dims;
  if (row.index >= 0 && static_cast<uint32_t>(row.index) < entry.chunk_count) {
    const uint32_t hinted = entry.first_chunk + static_cast<uint32_t>(row.index);
    if (std::equal(begin, end, metadata_.chunks[hinted].offset)) return hinted;
  }
  const std::vector<uint32_t>& sorted = sorted_chunks(e);
  auto at = std::lower_bound(sorted.begin(), sorted.end(), row, [&](uint32_t chunk, const DcpStorage&) {
    const int64_t* offset = metadata_.chunks[chunk].offset;
    return std::lexicographical_compare(offset, offset + dims, begin, end);
  });
  uint32_t found = kNone;
  for (size_t twins = 0; at != sorted.end() && twins < kMaxTwins; ++at, ++twins) {
    if (!std::equal(begin, end, metadata_.chunks[*at].offset)) break;
    found = *at;
    if (item_of_chunk_[found] == kNone) break;
  }
  return found;
}

void DcpCatalog::match_items() {
  item_of_chunk_.assign(metadata_.chunks.size(), kNone);
  item_of_value_.assign(metadata_.entries.size(), kNone);
  for (uint32_t s = 0; s < metadata_.storage.size(); ++s) {
    const DcpStorage& row = metadata_.storage[s];
    if (row.entry == kNoDcpEntry) {
      sink_.report(damage("item belongs to no tensor", fqn_of(row)).found_only("storage_data has it, state_dict_metadata does not"));
      continue;
    }
    uint32_t* item = &item_of_value_[row.entry];
    if (!metadata_.entries[row.entry].is_bytes) {
      const uint32_t chunk = find_chunk(row.entry, row);
      if (chunk == kNone) {
        sink_.report(damage("item belongs to no chunk of its tensor", fqn_of(row))
                         .found_only(row.has_box ? "offset " + dims_text({row.box_offset, row.box_dims}) : "no offset"));
        continue;
      }
      item = &item_of_chunk_[chunk];
    }
    if (*item != kNone) sink_.report(damage("two items claim to be the same chunk", fqn_of(row)));
    else *item = s;
  }
}

// ---- where items lie

DcpCatalog::File& DcpCatalog::file_of(const DcpStorage& row) {
  if (row.file == last_name_) return *last_file_;   // items of a file mostly come together
  const auto [at, is_new] = files_.try_emplace(row.file);
  File& file = at->second;
  last_name_ = row.file;
  last_file_ = &file;
  if (!is_new) return file;
  const std::string name(metadata_.names[row.file]);
  file.rank = dcp_rank(name);
  try {
    file.source = checkpoint_.source->add(name);
  } catch (const Error& e) {
    if (e.code() != Exit::damaged && e.code() != Exit::unsupported) throw;
    file.state = e.code() == Exit::damaged ? FileState::missing : FileState::outside;
    if (file.state == FileState::missing) return file;   // reported when its items are counted
    Finding f = e.finding();
    f.key(std::string(fqn_of(row))).saw("a file inside the checkpoint", (name.starts_with('/') ? "the absolute path " : "") + f.found);
    if (f.where.path.empty()) f.at(name_);
    sink_.report(std::move(f));
  }
  return file;
}

bool DcpCatalog::known_transforms(const DcpStorage& row) {
  if (row.transform_count == 0) return true;
  std::string list;
  for (uint32_t i = 0; i < row.transform_count; ++i) {
    list += fmt::format("{}{}", i == 0 ? "" : ", ", metadata_.names[metadata_.transforms[row.first_transform + i]]);
  }
  if (list == kDcpZstd) return true;
  sink_.report(damage("item is encoded in an unknown way", fqn_of(row)).saw(std::string(kDcpZstd), list));
  return false;
}

void DcpCatalog::locate_items() {
  usable_.assign(metadata_.storage.size(), false);
  for (uint32_t s = 0; s < metadata_.storage.size(); ++s) {
    const DcpStorage& row = metadata_.storage[s];
    File& file = file_of(row);
    ++file.items;
    if (file.state != FileState::usable) continue;
    if (end_of(row) > checkpoint_.source->file(file.source).size) {
      ++file.beyond;
      file.end = std::max(file.end, end_of(row));
      continue;
    }
    usable_[s] = known_transforms(row);
  }
}

// One finding for each file, however many items miss it.
void DcpCatalog::report_files() {
  std::vector<std::pair<std::string, const File*>> files;
  for (const auto& [name, file] : files_) files.emplace_back(metadata_.names[name], &file);
  std::sort(files.begin(), files.end());
  for (const auto& [name, file] : files) {
    content_.highest_rank = std::max(content_.highest_rank, file->rank);
    if (file->state == FileState::usable) content_.files.push_back(checkpoint_.source->file(file->source).name);
    if (file->state == FileState::outside || (file->state == FileState::usable && file->beyond == 0)) continue;
    const bool missing = file->state == FileState::missing;
    Finding f = error(Exit::damaged, missing ? "data file is missing" : "data file is cut short, or not the one that was saved");
    f.at(name);
    if (missing) {
      f.found_only(fmt::format("{} items of {} lie in it", file->items, name_));
    } else {
      f.saw(fmt::format("at least {} bytes", file->end),
            fmt::format("{} bytes; {} of {} items end beyond", checkpoint_.source->file(file->source).size, file->beyond, file->items));
    }
    f.where.rank = file->rank;
    sink_.report(std::move(f));
  }
}

// ---- items that share bytes

uint32_t DcpCatalog::chunk_of(uint32_t s) const {
  const DcpEntry& entry = metadata_.entries[metadata_.storage[s].entry];
  for (uint32_t c = entry.first_chunk; c < entry.first_chunk + entry.chunk_count; ++c) {
    if (item_of_chunk_[c] == s) return c;
  }
  return kNone;
}

bool DcpCatalog::is_empty_chunk(uint32_t s) const {
  const uint32_t chunk = chunk_of(s);
  return chunk != kNone && is_empty({{}, {metadata_.chunks[chunk].size, metadata_.entries[metadata_.storage[s].entry].shape.size()}});
}

// Tied parameters may be saved once and named twice; nothing else may share bytes.
void DcpCatalog::check_overlaps() {
  std::vector<uint32_t> order;
  order.reserve(metadata_.storage.size());
  for (uint32_t s = 0; s < metadata_.storage.size(); ++s) {
    if (usable_[s] && metadata_.storage[s].entry != kNoDcpEntry) order.push_back(s);
  }
  const auto before = [this](uint32_t a, uint32_t b) {
    const DcpStorage &x = metadata_.storage[a], &y = metadata_.storage[b];
    if (x.file != y.file) return x.file < y.file;
    return x.offset != y.offset ? x.offset < y.offset : x.length < y.length;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::stable_sort(order.begin(), order.end(), before);
  uint32_t reaching = kNone;                 // of those before, the one that reaches farthest
  for (uint32_t s : order) {
    const DcpStorage& row = metadata_.storage[s];
    if (reaching != kNone && metadata_.storage[reaching].file == row.file && end_of(metadata_.storage[reaching]) > row.offset) {
      const DcpStorage& other = metadata_.storage[reaching];
      if (other.offset == row.offset && other.length == row.length) {
        note_same_bytes(reaching, s);
      } else {
        sink_.report(damage("two items overlap in their file", fqn_of(row))
                         .saw("bytes of its own", fmt::format("[{}, {}) of {}, also claimed by {}", row.offset, end_of(row),
                                                              metadata_.names[row.file], fqn_of(other))));
      }
    }
    const bool farther = reaching == kNone || metadata_.storage[reaching].file != row.file || end_of(row) > end_of(metadata_.storage[reaching]);
    if (farther) reaching = s;
  }
}

void DcpCatalog::note_same_bytes(uint32_t a, uint32_t b) {
  const uint32_t x = std::min(metadata_.storage[a].entry, metadata_.storage[b].entry);
  const uint32_t y = std::max(metadata_.storage[a].entry, metadata_.storage[b].entry);
  if (x != y && !metadata_.entries[x].is_bytes && !metadata_.entries[y].is_bytes) {
    if (same_as_.contains(y)) return;        // asked before
    if (!same_tensor(metadata_.entries[x], metadata_.entries[y])) {
      sink_.report(damage("two tensors share some of their bytes", metadata_.entries[y].fqn)
                       .saw("bytes of its own", fmt::format("bytes of {}", metadata_.entries[x].fqn)));
    }
    const auto first = same_as_.find(x);
    same_as_.emplace(y, first == same_as_.end() ? x : first->second);
    return;
  }
  if (x == y && (is_empty_chunk(a) || is_empty_chunk(b))) return;
  usable_[b] = usable_[b] && !metadata_.entries[metadata_.storage[b].entry].is_bytes;   // else one item could be read as many values
  sink_.report(damage("two items overlap in their file", metadata_.entries[y].fqn)
                   .saw("bytes of its own", fmt::format("bytes of {}", metadata_.entries[x].fqn)));
}

bool DcpCatalog::same_tensor(const DcpEntry& a, const DcpEntry& b) const {
  if (a.dtype != b.dtype || !equal(a.shape, b.shape) || a.chunk_count != b.chunk_count) return false;
  const size_t dims = a.shape.size();
  for (uint32_t i = 0; i < a.chunk_count; ++i) {
    const DcpChunk &x = metadata_.chunks[a.first_chunk + i], &y = metadata_.chunks[b.first_chunk + i];
    if (!std::equal(x.offset, x.offset + dims, y.offset) || !std::equal(x.size, x.size + dims, y.size)) return false;
    const uint32_t s = item_of_chunk_[a.first_chunk + i], t = item_of_chunk_[b.first_chunk + i];
    if (s == kNone || t == kNone) return false;
    const DcpStorage &p = metadata_.storage[s], &q = metadata_.storage[t];
    if (p.file != q.file || p.offset != q.offset || p.length != q.length) return false;
  }
  return true;
}

// ---- into the catalog

Dims DcpCatalog::own(const int64_t* dims, size_t count) {
  const Dims view(dims, count);
  return metadata_.arena == checkpoint_.arena ? view : checkpoint_.arena->store(view);
}

void DcpCatalog::add_chunks(TensorIndex tensor, const DcpEntry& entry) {
  const size_t dims = entry.shape.size();
  for (uint32_t c = entry.first_chunk; c < entry.first_chunk + entry.chunk_count; ++c) {
    const DcpChunk& chunk = metadata_.chunks[c];
    const uint32_t s = item_of_chunk_[c];
    if (s == kNone) {
      sink_.report(damage("chunk has no item", entry.fqn).found_only("box " + box_text({{chunk.offset, dims}, {chunk.size, dims}})));
      continue;
    }
    if (!usable_[s]) continue;               // reported
    const DcpStorage& row = metadata_.storage[s];
    const File& file = file_of(row);
    Piece piece;
    piece.tensor = tensor;
    piece.rank = file.rank;
    piece.box = {own(chunk.offset, dims), own(chunk.size, dims)};
    piece.source = file.source;
    piece.encoding = Encoding::item;
    piece.stored = entry.dtype;
    piece.offset = row.offset;
    piece.length = row.length;
    checkpoint_.add_piece(piece);
    if (row.transform_count == 0) continue;
    content_.zstd = true;
    items_.add_compressed(file.source, row.offset);
  }
}

// The tensor of an entry; kNoTensor where ranks disagree about it.
TensorIndex DcpCatalog::tensor_for(uint32_t e, const DcpLeaf* known) {
  const DcpEntry& entry = metadata_.entries[e];
  if (const auto same = same_as_.find(e); same != same_as_.end() && same_tensor(metadata_.entries[same->second], entry)) {
    return tensor_of_.at(same->second);
  }
  TensorIndex tensor = known != nullptr ? known->tensor : kNoTensor;
  if (tensor == kNoTensor) {
    tensor = checkpoint_.add_tensor(entry.dtype, entry.shape);
    if (metadata_.arena == checkpoint_.arena) checkpoint_.tensors[tensor].key = entry.fqn;   // what it mostly will be
  } else if (const TensorInfo& info = checkpoint_.tensors[tensor]; info.dtype != entry.dtype || !equal(info.shape, entry.shape)) {
    sink_.report(damage("ranks disagree about a tensor", entry.fqn)
                     .saw(fmt::format("{} {}", dtype_name(info.dtype), dims_text(info.shape)),
                          fmt::format("{} {}", dtype_name(entry.dtype), dims_text(entry.shape))));
    return tensor;
  }
  add_chunks(tensor, entry);
  return tensor;
}

void DcpCatalog::add_value(uint32_t e, DcpLeaf& leaf) {
  const DcpEntry& entry = metadata_.entries[e];
  const uint32_t s = item_of_value_[e];
  if (s == kNone) {
    sink_.report(damage("value has no item", entry.fqn));
    return;
  }
  if (!usable_[s]) return;                   // reported
  const DcpStorage& row = metadata_.storage[s];
  const File& file = file_of(row);
  const DcpByteItem item{file.source, file.rank, row.offset, row.length, row.transform_count > 0, entry.fqn};
  content_.zstd = content_.zstd || item.zstd;
  if (leaf.value == DcpLeaf::kNoValue) {
    leaf.value = static_cast<uint32_t>(content_.values.size());
    content_.values.push_back(item);
  } else if (!same_bytes(*checkpoint_.source, content_.values[leaf.value], item)) {
    Finding f = warning("value differs between ranks: that of the lowest rank is kept").key(std::string(entry.fqn)).at(name_);
    f.where.rank = file.rank;
    sink_.report(std::move(f));
  }
}

void DcpCatalog::add_entries() {
  content_.arenas.push_back(metadata_.arena);
  const size_t first_element = content_.elements.size();
  if (first_element == 0) content_.elements = std::move(metadata_.elements);
  else content_.elements.insert(content_.elements.end(), metadata_.elements.begin(), metadata_.elements.end());

  std::unordered_map<std::string_view, uint32_t> known;   // of other ranks
  for (uint32_t l = 0; l < content_.leaves.size(); ++l) known.emplace(content_.leaves[l].fqn, l);
  const bool first_file = known.empty();
  content_.leaves.reserve(content_.leaves.size() + (first_file ? metadata_.entries.size() : 0));
  if (first_file) checkpoint_.pieces.reserve(metadata_.chunks.size());
  for (uint32_t e = 0; e < metadata_.entries.size(); ++e) {
    const DcpEntry& entry = metadata_.entries[e];
    const auto hit = first_file ? known.end() : known.find(entry.fqn);
    if (hit == known.end()) {
      content_.leaves.push_back({entry.fqn, static_cast<uint32_t>(first_element + entry.first_element), entry.element_count});
    }
    DcpLeaf& leaf = hit == known.end() ? content_.leaves.back() : content_.leaves[hit->second];
    const bool clash = entry.is_bytes ? leaf.tensor != kNoTensor : leaf.value != DcpLeaf::kNoValue;
    if (clash) {
      sink_.report(damage("ranks disagree: a tensor on one, a value on another", entry.fqn));
    } else if (entry.is_bytes) {
      add_value(e, leaf);
    } else {
      leaf.tensor = tensor_for(e, hit == known.end() ? nullptr : &leaf);
      if (!same_as_.empty()) tensor_of_.emplace(e, leaf.tensor);
    }
  }
}

}  // namespace fsdpctl
