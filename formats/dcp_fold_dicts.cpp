// The big dicts of `.metadata`, whose items are folded as they come.
#include <algorithm>

#include "formats/dcp_fold.h"
#include "formats/dcp_fold_rows.h"

namespace fsdpctl {

// Room that is reserved and not used costs nothing, growing costs copies.
DcpFold::DcpFold(CellStore& store, NameTable& names, uint64_t size) : store_(store), names_(names), dims_(*names.arena()), most_chunks_(size / kLeastChunk + 1) {
  out_.chunks.reserve(size / 100);
  out_.elements.reserve(size / 100);
  out_.entries.reserve(size / 200);
  chunk_dims_.reserve(size / 100);
}

bool DcpFold::take(Cell dict, Fields items) {
  if (items.empty()) return false;
  if (is_a(items[1], DcpClass::tensor) || is_a(items[1], DcpClass::bytes)) take_entries(dict, items);
  else if (is_a(items[1], DcpClass::storage_info)) take_storage(dict, items);
  else if (are_paths(items)) take_paths(dict, items);
  else return false;
  return true;
}

void DcpFold::hold(Cell value) {
  const bool any = value.is(Cell::tuple) || value.is(Cell::list) || value.is(Cell::dict);   // these may hold either
  keep_tensors_ = keep_tensors_ || any || is_a(value, DcpClass::tensor);
  keep_items_ = keep_items_ || any || is_a(value, DcpClass::metadata_index) || is_a(value, DcpClass::storage_info);
}

// The keys' names, each by the number that all equal ones share. Valid until the next call.
std::span<const uint32_t> DcpFold::unified_keys(Fields items) {
  scratch_.clear();
  for (size_t i = 0; i < items.size(); i += 2) scratch_.push_back(items[i].ref());
  names_.unify(scratch_);
  return scratch_;
}

// ---- state_dict_metadata

void DcpFold::take_entries(Cell dict, Fields items) {
  if (!entries_.is(Cell::none) && entries_ != dict) throw damaged_pickle("metadata lists tensors in two places");
  entries_ = dict;
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!items[i].is(Cell::string) || !(is_a(items[i + 1], DcpClass::tensor) || is_a(items[i + 1], DcpClass::bytes))) {
      throw damaged_pickle("entry of state_dict_metadata is no tensor and no object");
    }
  }
  const std::span<const uint32_t> keys = unified_keys(items);
  entry_of_.resize(names_.size(), kNoDcpEntry);
  for (size_t k = 0; k < keys.size(); ++k) {
    const std::string_view fqn = names_.text(keys[k]);
    if (entry_of_[keys[k]] != kNoDcpEntry) throw damaged_pickle("name is listed twice", std::string(fqn));
    entry_of_[keys[k]] = add_row(out_.entries, entry(fqn, items[2 * k + 1]));
  }
  if (!keep_tensors_) tensors_.clear();
}

DcpEntry DcpFold::entry(std::string_view fqn, Cell value) {
  DcpEntry made;
  made.fqn = fqn;
  made.is_bytes = is_a(value, DcpClass::bytes);
  if (made.is_bytes) return made;
  const TensorRow& row = row_at(tensors_, value.ref());
  const std::optional<DType> dtype = row.built ? row_at(properties_, row.properties) : std::nullopt;
  if (!dtype) throw damaged_pickle("tensor has no dtype", std::string(fqn));
  made.dtype = *dtype;
  made.shape = row.shape;
  made.first_chunk = row.first_chunk;
  made.chunk_count = row.chunk_count;
  return made;
}

// ---- storage_data

void DcpFold::take_storage(Cell dict, Fields items) {
  if (!storage_.is(Cell::none) && storage_ != dict) throw damaged_pickle("metadata lists items in two places");
  storage_ = dict;
  scratch_.clear();
  for (size_t i = 0; i < items.size(); i += 2) {
    const Cell key = items[i], value = items[i + 1];
    if (!is_a(key, DcpClass::metadata_index) || !is_a(value, DcpClass::storage_info)) {
      throw damaged_pickle("entry of storage_data does not say where an item lies");
    }
    if (!row_at(infos_, value.ref()).built) throw damaged_pickle("entry of storage_data has no offset or length");
    scratch_.push_back(row_at(indices_, key.ref()).fqn);
    scratch_.push_back(infos_[value.ref()].file);
  }
  names_.unify(scratch_);
  for (size_t i = 0; i < items.size(); i += 2) {
    const IndexRow& index = indices_[items[i].ref()];
    const InfoRow& info = infos_[items[i + 1].ref()];
    note_end(info, scratch_[i + 1]);
    if (place(index, info, scratch_[i], scratch_[i + 1])) continue;
    DcpStorage& row = out_.storage[add_row(out_.storage)];
    row.name = scratch_[i];
    row.file = scratch_[i + 1];
    row.offset = info.offset;
    row.length = info.length;
    row.first_transform = info.first_transform;
    row.transform_count = info.transform_count;
    row.index = index.index;
    row.has_box = index.has_offset;
    row.box_offset = index.offset;
    row.box_dims = index.dims;
  }
  if (keep_items_) return;
  indices_.clear();
  infos_.clear();
}

void DcpFold::note_end(const InfoRow& info, uint32_t file) {
  if (file != last_file_) last_end_ = &file_ends_[file];   // items of a file mostly come together
  last_file_ = file;
  out_.apart = out_.apart && info.offset >= *last_end_;
  *last_end_ = std::max(*last_end_, info.offset + std::min(info.length, UINT64_MAX - info.offset));
}

// Gives an item to the chunk that it names, where there is no doubt: what the index says is a hint, the offset decides.
bool DcpFold::place(const IndexRow& index, const InfoRow& info, uint32_t name, uint32_t file) {
  const uint32_t e = entry_of(name);
  if (e == kNoDcpEntry || info.transform_count > 0 || !index.has_offset || index.index < 0) return false;
  const DcpEntry& entry = out_.entries[e];
  if (static_cast<uint32_t>(index.index) >= entry.chunk_count || index.dims != entry.shape.size()) return false;   // values have no chunks
  Piece& chunk = out_.chunks[entry.first_chunk + static_cast<uint32_t>(index.index)];
  if (chunk.source != kNoDcpFile || !std::equal(index.offset, index.offset + index.dims, chunk.box.offset.begin())) return false;
  chunk.tensor = e;
  chunk.source = file;
  chunk.offset = info.offset;
  chunk.length = info.length;
  return true;
}

// ---- planner_data

// Of the dicts that anyone knows only planner_data looks like this; should another one, nobody will ask for it.
bool DcpFold::are_paths(Fields items) const {
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!items[i].is(Cell::string) || !items[i + 1].is(Cell::tuple) || items[i + 1].n() == 0) return false;
    const std::span<const Cell> path = store_.cells(items[i + 1]);
    for (Cell element : path) {
      const bool index = element.is(Cell::integer) && element.value() >= 0 && element.value() < INT32_MAX;
      if (!element.is(Cell::string) && !index) return false;
    }
    if (!path[0].is(Cell::string)) return false;
  }
  return true;
}

void DcpFold::take_paths(Cell dict, Fields items) {
  if (path_dicts_.empty() || path_dicts_.back().dict != dict) path_dicts_.push_back({dict, {}});
  const std::span<const uint32_t> keys = unified_keys(items);
  for (size_t k = 0; k < keys.size(); ++k) {
    const std::span<const Cell> path = store_.cells(items[2 * k + 1]);
    path_dicts_.back().rows.push_back({keys[k], static_cast<uint32_t>(out_.elements.size()), static_cast<uint32_t>(path.size())});
    for (Cell element : path) {
      DcpPathElement e;
      if (element.is(Cell::string)) {
        e.text = names_.text(element.ref()).data();
        e.length = static_cast<uint32_t>(names_.text(element.ref()).size());
      } else {
        e.index = static_cast<uint32_t>(element.value());
      }
      add_row(out_.elements, e);
    }
  }
}

void DcpFold::fold_paths(Cell dict) {
  const bool others = dict.is(Cell::dict) ? !store_.contents(dict).empty() : !dict.is(Cell::fresh_dict);
  if (others) {
    warnings_.push_back(warning("planner_data holds what is no path: names are not taken apart"));
    return;
  }
  out_.has_planner_data = true;
  for (const PathDict& paths : path_dicts_) {
    if (paths.dict != dict) continue;
    for (const PathRow& row : paths.rows) {
      if (entry_of(row.name) == kNoDcpEntry) continue;   // of a value that no rank saved
      DcpEntry& entry = out_.entries[entry_of(row.name)];
      entry.first_element = row.first_element;
      entry.element_count = row.element_count;
    }
  }
}

// ---- the whole

DcpMetadata DcpFold::finish(Cell result, int protocol, const std::string& name, FindingSink& sink) {
  if (!is_a(result, DcpClass::metadata) || !has_metadata_) throw damaged_pickle("file is not the metadata of a distributed checkpoint");
  for (std::vector<Finding>* list : {&globals_.warnings(), &warnings_}) {
    for (Finding& f : *list) sink.report(std::move(f.at(name)));
  }
  out_.protocol = protocol;
  if (const DcpGlobal* metadata = globals_.find(DcpClass::metadata)) out_.home = names_.arena()->store(metadata->module);
  if (const DcpGlobal* properties = globals_.find(DcpClass::tensor_properties)) {
    out_.old_homes = properties->module.find("._shard") != std::string::npos;
  }
  out_.arena = names_.arena();
  out_.names = names_.take_texts();
  return std::move(out_);
}

}  // namespace fsdpctl
