// The big dicts of `.metadata`, whose items are folded as they come.
#include "formats/dcp_fold.h"
#include "formats/dcp_fold_rows.h"

namespace fsdpctl {

// Room that is reserved and not used costs nothing, growing costs copies.
DcpFold::DcpFold(CellStore& store, NameTable& names, uint64_t size) : store_(store), names_(names), most_chunks_(size / kLeastChunk + 1) {
  out_.chunks.reserve(size / 100);
  out_.storage.reserve(size / 100);
  out_.elements.reserve(size / 100);
  out_.entries.reserve(size / 200);
  storage_order_.reserve(size / 100);
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
  keep_indices_ = keep_indices_ || any || is_a(value, DcpClass::metadata_index);
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
    scratch_.push_back(row_at(indices_, key.ref()).fqn);
    scratch_.push_back(row_at(out_.storage, value.ref()).file);
  }
  names_.unify(scratch_);
  for (size_t i = 0; i < items.size(); i += 2) {
    uint32_t at = items[i + 1].ref();
    if (out_.storage[at].name != kNoName) at = add_row(out_.storage, DcpStorage(out_.storage[at]));   // of two names
    const IndexRow& index = indices_[items[i].ref()];
    DcpStorage& row = out_.storage[at];
    row.name = scratch_[i];
    row.file = scratch_[i + 1];
    row.index = index.index;
    row.has_box = index.has_offset;
    row.box_offset = index.offset;
    row.box_dims = index.dims;
    storage_order_.push_back(at);
  }
  if (!keep_indices_) indices_.clear();
}

// Rows of storage were made in the order of their objects; they end in the order of the dict, one for each of its keys.
void DcpFold::order_storage() {
  std::vector<DcpStorage>& rows = out_.storage;
  bool in_order = storage_order_.size() == rows.size();
  for (size_t i = 0; i < storage_order_.size() && in_order; ++i) in_order = storage_order_[i] == i;
  if (!in_order) {
    std::vector<DcpStorage> ordered;
    ordered.reserve(storage_order_.size());
    for (uint32_t row : storage_order_) ordered.push_back(rows[row]);
    rows = std::move(ordered);
  }
  for (DcpStorage& row : rows) row.entry = entry_of(row.name);
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
