#include "formats/dcp_catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "formats/dcp_files.h"

namespace fsdpctl {
namespace {

// Chunks with the same offset are few, or somebody plays tricks.
constexpr size_t kMaxTwins = 64;

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
  if (!metadata_.apart || files_share_names()) check_overlaps();
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
      const Dims x = metadata_.chunks[a].box.offset, y = metadata_.chunks[b].box.offset;
      return std::lexicographical_compare(x.begin(), x.end(), y.begin(), y.end());
    });
  }
  return sorted;
}

// By the offset; the index is only a hint where to look.
uint32_t DcpCatalog::find_chunk(uint32_t e, const DcpStorage& row) {
  const DcpEntry& entry = metadata_.entries[e];
  const size_t dims = entry.shape.size();
  if (!row.has_box || row.box_dims != dims) return kNone;
  const Dims wanted(row.box_offset, dims);
  if (row.index >= 0 && static_cast<uint32_t>(row.index) < entry.chunk_count) {
    const uint32_t hinted = entry.first_chunk + static_cast<uint32_t>(row.index);
    if (equal(wanted, metadata_.chunks[hinted].box.offset)) return hinted;
  }
  const std::vector<uint32_t>& sorted = sorted_chunks(e);
  auto at = std::lower_bound(sorted.begin(), sorted.end(), wanted, [&](uint32_t chunk, Dims offset) {
    const Dims other = metadata_.chunks[chunk].box.offset;
    return std::lexicographical_compare(other.begin(), other.end(), offset.begin(), offset.end());
  });
  uint32_t found = kNone;
  for (size_t twins = 0; at != sorted.end() && twins < kMaxTwins; ++at, ++twins) {
    if (!equal(wanted, metadata_.chunks[*at].box.offset)) break;
    found = *at;
    if (metadata_.chunks[found].source == kNoDcpFile) break;
  }
  return found;
}

// Most are matched already: those whose hint is right.
void DcpCatalog::match_items() {
  item_of_value_.assign(metadata_.entries.size(), kNone);
  matched_.assign(metadata_.storage.size(), false);
  for (uint32_t s = 0; s < metadata_.storage.size(); ++s) {
    const DcpStorage& row = metadata_.storage[s];
    if (row.entry == kNoDcpEntry) {
      sink_.report(damage("item belongs to no tensor", fqn_of(row)).found_only("storage_data has it, state_dict_metadata does not"));
    } else if (!metadata_.entries[row.entry].is_bytes) {
      match_chunk(s);
    } else if (item_of_value_[row.entry] != kNone) {
      sink_.report(damage("two items claim to be the same chunk", fqn_of(row)));
    } else {
      item_of_value_[row.entry] = s;
    }
  }
}

void DcpCatalog::match_chunk(uint32_t s) {
  const DcpStorage& row = metadata_.storage[s];
  const uint32_t c = find_chunk(row.entry, row);
  if (c == kNone) {
    sink_.report(damage("item belongs to no chunk of its tensor", fqn_of(row))
                     .found_only(row.has_box ? "offset " + dims_text({row.box_offset, row.box_dims}) : "no offset"));
    return;
  }
  Piece& chunk = metadata_.chunks[c];
  if (chunk.source != kNoDcpFile) {
    sink_.report(damage("two items claim to be the same chunk", fqn_of(row)));
    return;
  }
  chunk.tensor = row.entry;
  chunk.source = row.file;
  chunk.offset = row.offset;
  chunk.length = row.length;
  if (row.transform_count > 0) encoded_.emplace(c, s);
  matched_[s] = true;
}

// ---- where items lie

DcpCatalog::Item DcpCatalog::item(uint32_t number) const {
  if (number < metadata_.chunks.size()) {
    const Piece& chunk = metadata_.chunks[number];
    return {chunk.tensor, chunk.source, chunk.offset, chunk.length};
  }
  const DcpStorage& row = metadata_.storage[number - metadata_.chunks.size()];
  return {row.entry, row.file, row.offset, row.length};
}

DcpCatalog::File& DcpCatalog::file_of(uint32_t number, std::string_view fqn) {
  if (number == last_name_) return *last_file_;   // items of a file mostly come together
  const auto [at, is_new] = files_.try_emplace(number);
  File& file = at->second;
  last_name_ = number;
  last_file_ = &file;
  if (!is_new) return file;
  const std::string name(metadata_.names[number]);
  file.rank = dcp_rank(name);
  try {
    file.source = checkpoint_.source->add(name);
    file.size = checkpoint_.source->file(file.source).size;
  } catch (const Error& e) {
    if (e.code() != Exit::damaged && e.code() != Exit::unsupported) throw;
    file.state = e.code() == Exit::damaged ? FileState::missing : FileState::outside;
    if (file.state == FileState::missing) return file;   // reported when its items are counted
    Finding f = e.finding();
    f.key(std::string(fqn)).saw("a file inside the checkpoint", (name.starts_with('/') ? "the absolute path " : "") + f.found);
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

// The file that the item lies in; null where it is not there.
DcpCatalog::File* DcpCatalog::locate(const Item& item, std::string_view fqn) {
  File& file = file_of(item.file, fqn);
  ++file.items;
  if (file.state != FileState::usable) return nullptr;
  if (item.end() <= file.size) return &file;
  ++file.beyond;
  file.end = std::max(file.end, item.end());
  return nullptr;
}

void DcpCatalog::locate_items() {
  const auto chunks = static_cast<uint32_t>(metadata_.chunks.size());
  usable_.assign(chunks + metadata_.storage.size(), false);
  for (uint32_t c = 0; c < chunks; ++c) {
    Piece& chunk = metadata_.chunks[c];
    if (chunk.source == kNoDcpFile) continue;
    const File* file = locate(item(c), metadata_.entries[chunk.tensor].fqn);
    if (file == nullptr) continue;
    const auto encoded = encoded_.empty() ? encoded_.end() : encoded_.find(c);
    usable_[c] = encoded == encoded_.end() || known_transforms(metadata_.storage[encoded->second]);
    chunk.source = file->source;             // from now on
    chunk.rank = file->rank;
  }
  for (uint32_t s = 0; s < metadata_.storage.size(); ++s) {
    const DcpStorage& row = metadata_.storage[s];
    if (!matched_[s] && locate(item(chunks + s), fqn_of(row)) != nullptr) usable_[chunks + s] = known_transforms(row);
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
            fmt::format("{} bytes; {} of {} items end beyond", file->size, file->beyond, file->items));
    }
    f.where.rank = file->rank;
    sink_.report(std::move(f));
  }
}

// ---- into the catalog

void DcpCatalog::add_chunks(TensorIndex tensor, const DcpEntry& entry) {
  for (uint32_t c = entry.first_chunk; c < entry.first_chunk + entry.chunk_count; ++c) {
    Piece& chunk = metadata_.chunks[c];
    chunk.tensor = usable_[c] ? tensor : kNoTensor;
    if (chunk.source == kNoDcpFile) {
      sink_.report(damage("chunk has no item", entry.fqn).found_only("box " + box_text(chunk.box)));
    }
    if (!usable_[c]) continue;               // reported
    chunk.encoding = Encoding::item;
    chunk.stored = entry.dtype;
    if (encoded_.empty() || !encoded_.contains(c)) continue;
    content_.zstd = true;
    items_.add_compressed(chunk.source, chunk.offset);
  }
}

void DcpCatalog::drop_chunks(const DcpEntry& entry) {
  for (uint32_t c = entry.first_chunk; c < entry.first_chunk + entry.chunk_count; ++c) metadata_.chunks[c].tensor = kNoTensor;
}

// Chunks that got a tensor are pieces.
void DcpCatalog::hand_over_pieces() {
  std::vector<Piece>& pieces = metadata_.chunks;
  std::erase_if(pieces, [](const Piece& piece) { return piece.tensor == kNoTensor; });
  if (checkpoint_.pieces.empty() && metadata_.arena == checkpoint_.arena) {
    checkpoint_.pieces = std::move(pieces);
    return;
  }
  for (Piece& piece : pieces) {
    piece.box = {checkpoint_.arena->store(piece.box.offset), checkpoint_.arena->store(piece.box.size)};
    checkpoint_.add_piece(piece);
  }
}

// The tensor of an entry; kNoTensor where ranks disagree about it.
TensorIndex DcpCatalog::tensor_for(uint32_t e, const DcpLeaf* known) {
  const DcpEntry& entry = metadata_.entries[e];
  if (const auto same = same_as_.find(e); same != same_as_.end() && same_tensor(metadata_.entries[same->second], entry)) {
    drop_chunks(entry);
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
    drop_chunks(entry);
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
  if (!usable_[metadata_.chunks.size() + s]) return;   // reported
  const DcpStorage& row = metadata_.storage[s];
  const File& file = file_of(row.file, entry.fqn);
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
      drop_chunks(entry);
    } else if (entry.is_bytes) {
      add_value(e, leaf);
    } else {
      leaf.tensor = tensor_for(e, hit == known.end() ? nullptr : &leaf);
      if (!same_as_.empty()) tensor_of_.emplace(e, leaf.tensor);
    }
  }
  hand_over_pieces();
}

}  // namespace fsdpctl
