#include "formats/dcp_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "formats/codec/python_classes.h"
#include "formats/dcp_machine.h"
#include "lib/base/box.h"

namespace fsdpctl {
namespace {

// Keys of states: the first names of the table.
enum Word : uint32_t {
  kStateDictMetadata, kPlannerData, kStorageData, kStorageMeta, kVersion, kProperties, kSize, kChunks, kOffsets, kSizes,
  kFqn, kOffset, kIndex, kRelativePath, kLength, kTransforms, kDtype, kWordCount,
};
constexpr std::array<std::string_view, kWordCount> kWords = {
    "state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", "properties", "size", "chunks",
    "offsets", "sizes", "fqn", "offset", "index", "relative_path", "length", "transform_descriptors", "dtype",
};

// Our classes, by their last name alone: their module has moved more than once.
enum Class : uint32_t { kNone, kMetadata, kTensor, kBytes, kChunk, kMetadataIndex, kStorageInfo, kTensorProperties };
constexpr std::array<std::string_view, 8> kClassNames = {
    "", "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex", "_StorageInfo",
    "TensorProperties",
};
bool is_a(Cell c, Class cls) { return c.is(Cell::object) && c.n() == cls; }

struct GlobalRow {
  std::string module, name;
  PythonName python;
  Class cls = kNone;
};
struct TensorRow {
  Dims shape;
  uint32_t properties = 0;
  uint32_t first_chunk = 0, chunk_count = 0;
  bool built = false;
};
struct IndexRow {
  const int64_t* offset = nullptr;
  uint32_t fqn = 0;
  int32_t index = -1;
  uint8_t dims = 0;
  bool has_offset = false;
};
struct PathRow {
  uint32_t name = 0;
  uint32_t first_element = 0, element_count = 0;
};
// A dict whose values are paths.
struct PathDict {
  Cell dict;
  std::vector<PathRow> rows;
};

constexpr uint32_t kNoName = 0xFFFFFFFF;

Error damaged(const char* what, std::string found = {}) { return Error(Exit::damaged, what).found_only(std::move(found)); }

template <class Row>
uint32_t add_row(std::vector<Row>& rows, Row row = Row()) {
  if (rows.size() >= 0xFFFFFF0) throw Error(Exit::unsupported, "metadata holds too many objects");
  rows.push_back(row);
  return static_cast<uint32_t>(rows.size() - 1);
}

class Fold : public CellMeaning {
 public:
  // `size`: of the file.
  Fold(CellStore& store, NameTable& names, uint64_t size, bool keep_all);
  Cell global(std::string_view module, std::string_view name) override;
  Cell call(Cell global, std::span<const Cell> args) override;
  void build(Cell object, std::span<const Cell> fields) override;
  void build_state(Cell object, Cell state) override;
  bool take(Cell dict, std::span<const Cell> items) override;
  DcpMetadata finish(Cell result, int protocol);
  std::vector<Finding>& warnings() { return warnings_; }

 private:
  using Fields = std::span<const Cell>;
  Cell make(Class cls);
  void build_chunk(uint32_t row, Fields fields);
  void build_tensor(TensorRow& row, Fields fields);
  void build_index(IndexRow& row, Fields fields);
  void build_storage(DcpStorage& row, Fields fields);
  void build_properties(std::optional<DType>& row, Cell dtype);
  void build_metadata(Fields fields);
  void take_entries(Cell dict, Fields items);
  void take_storage(Cell dict, Fields items);
  bool are_paths(Fields items) const;
  void take_paths(Cell dict, Fields items);
  void fold_paths(Cell dict);
  void order_storage();
  std::vector<Cell> cells_of(Cell sequence) const;
  Dims dims(Cell size, const char* what);
  template <size_t count>
  static std::array<Cell, count> find(Fields fields, const std::array<Word, count>& words);

  CellStore& store_;
  NameTable& names_;
  bool keep_all_;
  DcpMetadata out_;
  std::vector<Finding> warnings_;
  std::vector<GlobalRow> globals_;
  std::vector<std::optional<DType>> properties_;
  std::vector<TensorRow> tensors_;
  std::vector<IndexRow> indices_;
  std::vector<uint8_t> chunk_dims_;         // parallel to out_.chunks; kUnbuilt: not yet
  std::vector<uint32_t> entry_of_;          // name -> entry
  std::vector<uint32_t> storage_order_;     // rows of storage in the order of the dict
  std::vector<PathDict> path_dicts_;
  Cell entries_, storage_;                  // the dicts that were taken
  bool has_metadata_ = false;
  static constexpr uint8_t kUnbuilt = 255;
};

// Room that is reserved and not used costs nothing, growing costs copies.
Fold::Fold(CellStore& store, NameTable& names, uint64_t size, bool keep_all) : store_(store), names_(names), keep_all_(keep_all) {
  for (std::string_view word : kWords) names_.number(word);
  out_.chunks.reserve(size / 100);
  out_.storage.reserve(size / 100);
  out_.elements.reserve(size / 100);
  out_.entries.reserve(size / 200);
  storage_order_.reserve(size / 100);
  chunk_dims_.reserve(size / 100);
}

// ---- names and calls

Cell Fold::global(std::string_view module, std::string_view name) {
  const auto [now_module, now_name] = python3_name(module, name);
  for (uint32_t i = 0; i < globals_.size(); ++i) {
    if (globals_[i].name != now_name || globals_[i].module != now_module) continue;
    return Cell(Cell::global, globals_[i].python.role == PythonRole::size ? kSizeClass : 0, i);
  }
  GlobalRow row{std::string(now_module), std::string(now_name), classify_python_name(now_module, now_name)};
  const std::string full = fmt::format("{}.{}", row.module, row.name);
  const auto* at = std::find(kClassNames.begin() + 1, kClassNames.end(), now_name);
  if (at != kClassNames.end()) row.cls = static_cast<Class>(at - kClassNames.begin());
  if (row.cls == kMetadata) out_.home = names_.text(names_.number(row.module));
  if (row.cls == kTensorProperties) out_.old_homes = row.module.find("._shard") != std::string::npos;
  if (row.python.role == PythonRole::unsafe) throw Error(Exit::unsupported, "unsafe callable in pickle").found_only(full);
  if (row.python.role == PythonRole::foreign && row.cls == kNone) {
    warnings_.push_back(warning("unknown class in the metadata ignored").found_only(full));
  }
  globals_.push_back(std::move(row));
  return Cell(Cell::global, globals_.back().python.role == PythonRole::size ? kSizeClass : 0, static_cast<uint32_t>(globals_.size() - 1));
}

Cell Fold::call(Cell global, std::span<const Cell> args) {
  const GlobalRow& g = globals_[global.ref()];
  if (g.cls != kNone) {
    if (!args.empty()) throw damaged("object of the checkpoint's metadata has arguments", g.name);
    return make(g.cls);
  }
  switch (g.python.role) {
    case PythonRole::size: {
      const std::vector<Cell> cells = args.empty() ? std::vector<Cell>() : cells_of(args[0]);
      if (!std::all_of(cells.begin(), cells.end(), [](Cell c) { return c.is(Cell::integer); })) throw damaged("size is not a tuple of integers");
      return store_.tuple(Cell::size, cells);
    }
    case PythonRole::ordered_dict: case PythonRole::dict: return args.empty() ? store_.run(Cell::dict) : Cell(Cell::opaque);
    case PythonRole::list: return args.empty() ? store_.run(Cell::list) : Cell(Cell::opaque);
    case PythonRole::getattr:   // members of enums, where Python writes them by name
      if (args.size() == 2 && args[0].is(Cell::global) && args[1].is(Cell::string)) {
        const GlobalRow& owner = globals_[args[0].ref()];
        const std::string member = fmt::format("{}.{}", owner.name, names_.text(args[1].ref()));
        if (classify_python_name(owner.module, member).role == PythonRole::data) return Cell(Cell::opaque);
      }
      break;
    case PythonRole::reconstructor: case PythonRole::newobj:
      if (!args.empty() && args[0].is(Cell::global)) return call(args[0], {});
      break;
    case PythonRole::unsafe: case PythonRole::uncallable: case PythonRole::constant: case PythonRole::type:
    case PythonRole::newobj_ex: break;
    default: return Cell(Cell::opaque);
  }
  throw Error(Exit::unsupported, "unsafe callable in pickle").found_only(fmt::format("{}.{}", g.module, g.name));
}

// A new object of one of our classes; its state follows.
Cell Fold::make(Class cls) {
  uint32_t row = 0;
  switch (cls) {
    case kTensor: row = add_row(tensors_); break;
    case kChunk: row = add_row(out_.chunks), chunk_dims_.push_back(kUnbuilt); break;
    case kMetadataIndex: row = add_row(indices_); break;
    case kStorageInfo: row = add_row(out_.storage), out_.storage.back().name = kNoName; break;
    case kTensorProperties: row = add_row(properties_); break;
    default: break;
  }
  return Cell(Cell::object, cls, row);
}

// ---- states

std::vector<Cell> Fold::cells_of(Cell sequence) const {
  if (sequence.is(Cell::list)) return store_.contents(sequence);
  if (!sequence.is(Cell::tuple) && !sequence.is(Cell::size)) return {Cell()};   // nothing that anyone wants
  const std::span<const Cell> cells = store_.cells(sequence);
  return {cells.begin(), cells.end()};
}

// Fields by their keys; none where absent.
template <size_t count>
std::array<Cell, count> Fold::find(Fields fields, const std::array<Word, count>& words) {
  std::array<Cell, count> found{};
  for (size_t f = 0; f + 1 < fields.size(); f += 2) {
    if (!fields[f].is(Cell::string)) continue;
    for (size_t w = 0; w < count; ++w) {
      if (fields[f].ref() == words[w]) found[w] = fields[f + 1];
    }
  }
  return found;
}

Dims Fold::dims(Cell size, const char* what) {
  if (!size.is(Cell::size)) {   // an ordinary tuple or list may stand for it
    const std::vector<Cell> cells = cells_of(size);
    if (!std::all_of(cells.begin(), cells.end(), [](Cell c) { return c.is(Cell::integer); })) throw damaged(what);
    size = store_.tuple(Cell::size, cells);
  }
  if (size.n() > 64) throw damaged(what, fmt::format("{} dims", size.n()));
  const std::span<const Cell> cells = store_.cells(size);
  const std::span<int64_t> room = names_.arena()->dims(cells.size());
  for (size_t d = 0; d < cells.size(); ++d) room[d] = cells[d].value();
  return room;
}

void Fold::build(Cell object, Fields fields) {
  const uint32_t row = object.ref();
  switch (object.n()) {
    case kChunk: return build_chunk(row, fields);
    case kTensor: return build_tensor(tensors_[row], fields);
    case kMetadataIndex: return build_index(indices_[row], fields);
    case kStorageInfo: return build_storage(out_.storage[row], fields);
    case kTensorProperties: return build_properties(properties_[row], find<1>(fields, {kDtype})[0]);
    case kMetadata: return build_metadata(fields);
    default: return;   // bytes have no fields
  }
}

void Fold::build_state(Cell object, Cell state) {
  const std::vector<Cell> cells = state.is(Cell::tuple) ? cells_of(state) : std::vector<Cell>();
  if (object.n() == kTensorProperties && cells.size() >= 5) {
    // dtype, layout, requires_grad, memory_format, pin_memory; from torch 2.15 on strides, too
    out_.property_fields = cells.size();
    return build_properties(properties_[object.ref()], cells[0]);
  }
  if (cells.size() == 2 && cells[1].is(Cell::dict)) return build(object, store_.contents(cells[1]));   // (None, slots)
  throw damaged("object of the checkpoint's metadata has no fields", std::string(kClassNames[object.n()]));
}

void Fold::build_chunk(uint32_t row, Fields fields) {
  const auto [offsets, sizes] = find<2>(fields, {kOffsets, kSizes});
  const Dims offset = dims(offsets, "chunk has no offsets"), size = dims(sizes, "chunk has no sizes");
  if (offset.size() != size.size()) throw damaged("chunk's offsets and sizes have different numbers of dims");
  out_.chunks[row] = {offset.data(), size.data()};
  chunk_dims_[row] = static_cast<uint8_t>(offset.size());
}

void Fold::build_properties(std::optional<DType>& row, Cell dtype) {
  if (!dtype.is(Cell::global) || globals_[dtype.ref()].python.kind != Kind::dtype) throw damaged("tensor has no dtype");
  const GlobalRow& g = globals_[dtype.ref()];
  row = dtype_from_name(g.name);
  if (!row) throw Error(Exit::unsupported, "unknown dtype").found_only(fmt::format("{}.{}", g.module, g.name));
}

void Fold::build_tensor(TensorRow& row, Fields fields) {
  const auto [properties, size, chunks] = find<3>(fields, {kProperties, kSize, kChunks});
  if (!is_a(properties, kTensorProperties)) throw damaged("tensor has no properties");
  if (!chunks.is(Cell::list)) throw damaged("tensor has no list of chunks");
  row.properties = properties.ref();
  row.shape = dims(size, "tensor has no size");
  if (!checked_count(row.shape)) throw damaged("tensor claims an impossible shape", dims_text(row.shape));

  // A tensor's chunks are rows in a row, unless somebody else has them too: then they are copied.
  const std::vector<Cell> items = store_.contents(chunks);
  bool together = true;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!is_a(items[i], kChunk) || chunk_dims_[items[i].ref()] != row.shape.size()) throw damaged("chunk does not fit its tensor's dims");
    together = together && items[i].ref() == items[0].ref() + i;
  }
  row.chunk_count = static_cast<uint32_t>(items.size());
  row.first_chunk = items.empty() ? 0 : items[0].ref();
  row.built = true;
  if (together) return;
  row.first_chunk = static_cast<uint32_t>(out_.chunks.size());
  for (Cell item : items) {
    add_row(out_.chunks, DcpChunk(out_.chunks[item.ref()]));
    chunk_dims_.push_back(static_cast<uint8_t>(row.shape.size()));
  }
}

void Fold::build_index(IndexRow& row, Fields fields) {
  const auto [fqn, offset, hint] = find<3>(fields, {kFqn, kOffset, kIndex});
  if (!fqn.is(Cell::string)) throw damaged("entry of storage_data has no name");
  row.fqn = fqn.ref();
  row.has_offset = !offset.is(Cell::none);
  if (row.has_offset) {
    const Dims box = dims(offset, "entry of storage_data has no offset");
    row.offset = box.data();
    row.dims = static_cast<uint8_t>(box.size());
  }
  if (hint.is(Cell::integer) && hint.value() >= 0 && hint.value() < INT32_MAX) row.index = static_cast<int32_t>(hint.value());
}

void Fold::build_storage(DcpStorage& row, Fields fields) {
  const auto [file, offset, length, transforms] = find<4>(fields, {kRelativePath, kOffset, kLength, kTransforms});
  auto bytes = [](Cell c) {
    if (!c.is(Cell::integer) || c.value() < 0) throw damaged("entry of storage_data has no offset or length");
    return static_cast<uint64_t>(c.value());
  };
  if (!file.is(Cell::string)) throw damaged("entry of storage_data has no relative_path");
  row.file = file.ref();
  row.offset = bytes(offset);
  row.length = bytes(length);
  if (transforms.is(Cell::none)) return;
  const std::vector<Cell> list = cells_of(transforms);
  row.first_transform = static_cast<uint32_t>(out_.transforms.size());
  row.transform_count = static_cast<uint8_t>(list.size());
  for (Cell t : list) {
    if (!t.is(Cell::string) || list.size() > 64) throw damaged("transforms are no list of names");
    out_.transforms.push_back(t.ref());
  }
}

// ---- the big dicts, folded as their items come

bool Fold::take(Cell dict, Fields items) {
  if (items.empty()) return false;
  if (is_a(items[1], kTensor) || is_a(items[1], kBytes)) take_entries(dict, items);
  else if (is_a(items[1], kStorageInfo)) take_storage(dict, items);
  else if (are_paths(items)) take_paths(dict, items);
  else return false;
  return true;
}

void Fold::take_entries(Cell dict, Fields items) {
  if (!entries_.is(Cell::none) && entries_ != dict) throw damaged("metadata lists tensors in two places");
  entries_ = dict;
  entry_of_.resize(names_.size(), kNoDcpEntry);
  for (size_t i = 0; i < items.size(); i += 2) {
    const Cell key = items[i], value = items[i + 1];
    if (!key.is(Cell::string) || !(is_a(value, kTensor) || is_a(value, kBytes))) throw damaged("entry of state_dict_metadata is no tensor and no object");
    if (entry_of_[key.ref()] != kNoDcpEntry) throw damaged("name is listed twice", std::string(names_.text(key.ref())));
    DcpEntry entry;
    entry.fqn = names_.text(key.ref());
    entry.is_bytes = value.n() == kBytes;
    if (!entry.is_bytes) {
      const TensorRow& row = tensors_[value.ref()];
      const std::optional<DType> dtype = row.built ? properties_[row.properties] : std::nullopt;
      if (!dtype) throw damaged("tensor has no dtype", std::string(entry.fqn));
      entry.dtype = *dtype;
      entry.shape = row.shape;
      entry.first_chunk = row.first_chunk;
      entry.chunk_count = row.chunk_count;
    }
    entry_of_[key.ref()] = add_row(out_.entries, entry);
  }
  if (!keep_all_) tensors_.clear();
}

void Fold::take_storage(Cell dict, Fields items) {
  if (!storage_.is(Cell::none) && storage_ != dict) throw damaged("metadata lists items in two places");
  storage_ = dict;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Cell key = items[i], value = items[i + 1];
    if (!is_a(key, kMetadataIndex) || !is_a(value, kStorageInfo)) throw damaged("entry of storage_data does not say where an item lies");
    uint32_t at = value.ref();
    if (out_.storage[at].name != kNoName) at = add_row(out_.storage, DcpStorage(out_.storage[at]));   // of two names
    const IndexRow& index = indices_[key.ref()];
    DcpStorage& row = out_.storage[at];
    row.name = index.fqn;
    row.index = index.index;
    row.has_box = index.has_offset;
    row.box_offset = index.offset;
    row.box_dims = index.dims;
    storage_order_.push_back(at);
  }
  if (!keep_all_) indices_.clear();
}

// Of the dicts that anyone knows only planner_data looks like this; should another one, nobody will ask for it.
bool Fold::are_paths(Fields items) const {
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

void Fold::take_paths(Cell dict, Fields items) {
  if (path_dicts_.empty() || path_dicts_.back().dict != dict) path_dicts_.push_back({dict, {}});
  for (size_t i = 0; i < items.size(); i += 2) {
    const std::span<const Cell> path = store_.cells(items[i + 1]);
    PathRow row{items[i].ref(), static_cast<uint32_t>(out_.elements.size()), static_cast<uint32_t>(path.size())};
    path_dicts_.back().rows.push_back(row);
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

// ---- the whole

void Fold::build_metadata(Fields fields) {
  const auto [entries, planner, storage, version] = find<4>(fields, {kStateDictMetadata, kPlannerData, kStorageData, kVersion});
  if (has_metadata_) throw damaged("metadata is given twice");
  has_metadata_ = true;
  auto is_taken = [this](Cell dict, Cell taken) {   // all of it, or there is nothing in it
    const bool empty = dict.is(Cell::fresh_dict) || (dict.is(Cell::dict) && store_.contents(dict).empty());
    return empty && (taken.is(Cell::none) || dict == taken);
  };
  if (!is_taken(entries, entries_)) throw damaged("metadata has no state_dict_metadata");
  if (!is_taken(storage, storage_)) throw damaged("metadata has no storage_data");
  if (!planner.is(Cell::none)) fold_paths(planner);
  order_storage();
  if (version.is(Cell::string)) out_.version = names_.text(version.ref());
  for (size_t f = 0; f + 1 < fields.size(); f += 2) {
    if (!fields[f].is(Cell::string)) continue;
    if (fields[f].ref() == kStorageMeta) out_.has_storage_meta = true;
    if (fields[f].ref() > kVersion) out_.unknown_fields.push_back(names_.text(fields[f].ref()));
  }
}

void Fold::fold_paths(Cell dict) {
  const bool others = dict.is(Cell::dict) ? !store_.contents(dict).empty() : !dict.is(Cell::fresh_dict);
  if (others) {
    warnings_.push_back(warning("planner_data holds what is no path: names are not taken apart"));
    return;
  }
  out_.has_planner_data = true;
  entry_of_.resize(names_.size(), kNoDcpEntry);
  for (const PathDict& paths : path_dicts_) {
    if (paths.dict != dict) continue;
    for (const PathRow& row : paths.rows) {
      if (entry_of_[row.name] == kNoDcpEntry) continue;   // of a value that no rank saved
      DcpEntry& entry = out_.entries[entry_of_[row.name]];
      entry.first_element = row.first_element;
      entry.element_count = row.element_count;
    }
  }
}

// Rows of storage were made in the order of their objects; they end in the order of the dict, one for each of its keys.
void Fold::order_storage() {
  std::vector<DcpStorage>& rows = out_.storage;
  bool in_order = storage_order_.size() == rows.size();
  for (size_t i = 0; i < storage_order_.size() && in_order; ++i) in_order = storage_order_[i] == i;
  if (!in_order) {
    std::vector<DcpStorage> ordered;
    ordered.reserve(storage_order_.size());
    for (uint32_t row : storage_order_) ordered.push_back(rows[row]);
    rows = std::move(ordered);
  }
  entry_of_.resize(names_.size(), kNoDcpEntry);
  for (DcpStorage& row : rows) row.entry = entry_of_[row.name];
}

DcpMetadata Fold::finish(Cell result, int protocol) {
  if (!is_a(result, kMetadata) || !has_metadata_) throw damaged("file is not the metadata of a distributed checkpoint");
  out_.protocol = protocol;
  out_.arena = names_.arena();
  out_.names = names_.take_texts();
  return std::move(out_);
}

// nullopt: the pickle refers to something that was not kept.
std::optional<DcpMetadata> fold(const ByteWindow::Read& read, uint64_t size, const std::string& name, bool keep_all, FindingSink& sink) {
  CellStore store;
  NameTable names(size / 200);
  Fold meaning(store, names, size, keep_all);
  ByteWindow window(read, size);
  CellMachine machine(store, names, meaning, window, keep_all);
  try {
    const std::optional<Cell> result = machine.run();
    if (!result) return std::nullopt;
    DcpMetadata metadata = meaning.finish(*result, machine.protocol());
    for (Finding& f : meaning.warnings()) sink.report(std::move(f.at(name)));
    return metadata;
  } catch (const Error& e) {
    Finding finding = e.finding();
    if (finding.where.path.empty()) finding.at(name).offset(machine.offset());
    throw Error(std::move(finding));
  }
}

}  // namespace

DcpMetadata read_dcp_metadata(const DcpRead& read, uint64_t size, const std::string& name, FindingSink& sink) {
  if (size == 0) throw Error(Exit::damaged, "metadata is empty").at(name).saw("a pickle", "0 bytes");
  if (std::optional<DcpMetadata> metadata = fold(read, size, name, false, sink)) return *std::move(metadata);
  return fold(read, size, name, true, sink).value();
}

}  // namespace fsdpctl
