// Objects of `.metadata`: what their classes make and what their states say.
#include <fmt/format.h>

#include <algorithm>

#include "formats/dcp_fold.h"
#include "formats/dcp_fold_rows.h"
#include "lib/base/box.h"

namespace fsdpctl {
namespace {

constexpr size_t kMaxDims = 64;

// Fields by their keys; none where absent. Fast where they come in the order of `words`, which is that of PyTorch.
template <size_t count>
std::array<Cell, count> find(std::span<const Cell> fields, const std::array<DcpFold::Word, count>& words) {
  std::array<Cell, count> found{};
  size_t next = 0;
  for (size_t f = 0; f + 1 < fields.size(); f += 2) {
    const Cell key = fields[f];
    for (size_t tried = 0; tried < count; ++tried, next = next + 1 < count ? next + 1 : 0) {
      if (key != Cell(Cell::string, 0, words[next])) continue;
      found[next] = fields[f + 1];
      break;
    }
  }
  return found;
}

bool are_integers(std::span<const Cell> cells) {
  return std::all_of(cells.begin(), cells.end(), [](Cell c) { return c.is(Cell::integer); });
}

}  // namespace

// ---- calls

Cell DcpFold::call(Cell global, Fields args) {
  if (global.n() < kRowClass) return call_function(globals_[global], args);
  if (!args.empty()) throw damaged_pickle("object of the checkpoint's metadata has arguments", globals_[global].name);
  return make(static_cast<DcpClass>(global.n() - kRowClass));
}

Cell DcpFold::call_function(const DcpGlobal& g, Fields args) {
  switch (g.python.role) {
    case PythonRole::size: {
      const std::vector<Cell> cells = args.empty() ? std::vector<Cell>() : cells_of(args[0]);
      if (!are_integers(cells)) throw damaged_pickle("size is not a tuple of integers");
      return store_.tuple(Cell::size, cells);
    }
    case PythonRole::ordered_dict: case PythonRole::dict: return args.empty() ? store_.run(Cell::dict) : Cell(Cell::opaque);
    case PythonRole::list: return args.empty() ? store_.run(Cell::list) : Cell(Cell::opaque);
    case PythonRole::getattr:   // members of enums, where Python writes them by name
      if (args.size() == 2 && args[0].is(Cell::global) && args[1].is(Cell::string)) {
        const DcpGlobal& owner = globals_[args[0]];
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
  throw unsupported_pickle("unsafe callable in pickle", g.full_name());
}

// A new object of one of our classes; its state follows.
Cell DcpFold::make(DcpClass cls) {
  uint32_t row = 0;
  switch (cls) {
    case DcpClass::tensor: row = add_row(tensors_); break;
    case DcpClass::chunk: row = add_row(out_.chunks), out_.chunks.back().source = kNoDcpFile, chunk_dims_.push_back(kUnbuilt); break;
    case DcpClass::metadata_index: row = add_row(indices_); break;
    case DcpClass::storage_info: row = add_row(infos_); break;
    case DcpClass::tensor_properties: row = add_row(properties_); break;
    default: break;
  }
  return Cell(Cell::object, static_cast<uint32_t>(cls), row);
}

// ---- states

void DcpFold::build(Cell object, Fields fields) {
  const uint32_t row = object.ref();
  switch (static_cast<DcpClass>(object.n())) {
    case DcpClass::chunk: return build_chunk(row, fields);
    case DcpClass::tensor: return build_tensor(row_at(tensors_, row), fields);
    case DcpClass::metadata_index: return build_index(row_at(indices_, row), fields);
    case DcpClass::storage_info: return build_storage(row_at(infos_, row), fields);
    case DcpClass::tensor_properties: return build_properties(row_at(properties_, row), find<1>(fields, {kDtype})[0]);
    case DcpClass::metadata: return build_metadata(fields);
    default: return;   // bytes have no fields
  }
}

void DcpFold::build_state(Cell object, Cell state) {
  const Fields cells = state.is(Cell::tuple) ? store_.cells(state) : Fields();
  if (is_a(object, DcpClass::tensor_properties) && cells.size() >= 5) {
    // dtype, layout, requires_grad, memory_format, pin_memory; from torch 2.15 on strides, too
    out_.property_fields = cells.size();
    return build_properties(row_at(properties_, object.ref()), cells[0]);
  }
  if (cells.size() == 2 && cells[1].is(Cell::dict)) return build(object, store_.contents(cells[1]));   // (None, slots)
  throw damaged_pickle("object of the checkpoint's metadata has no fields", std::string(kDcpClassNames[object.n()]));
}

void DcpFold::build_metadata(Fields fields) {
  const auto [entries, planner, storage, version] = find<4>(fields, {kStateDictMetadata, kPlannerData, kStorageData, kVersion});
  if (has_metadata_) throw damaged_pickle("metadata is given twice");
  has_metadata_ = true;
  auto is_taken = [this](Cell dict, Cell taken) {   // all of it, or there is nothing in it
    const bool empty = dict.is(Cell::fresh_dict) || (dict.is(Cell::dict) && store_.contents(dict).empty());
    return empty && (taken.is(Cell::none) || dict == taken);
  };
  if (!is_taken(entries, entries_)) throw damaged_pickle("metadata has no state_dict_metadata");
  if (!is_taken(storage, storage_)) throw damaged_pickle("metadata has no storage_data");
  if (!planner.is(Cell::none)) fold_paths(planner);
  for (DcpStorage& row : out_.storage) row.entry = entry_of(row.name);
  if (version.is(Cell::string)) out_.version = names_.text(version.ref());
  for (size_t f = 0; f + 1 < fields.size(); f += 2) {
    if (!fields[f].is(Cell::string)) continue;
    if (fields[f].ref() == kStorageMeta) out_.has_storage_meta = true;
    if (fields[f].ref() > kVersion) out_.unknown_fields.push_back(names_.text(fields[f].ref()));
  }
}

void DcpFold::build_chunk(uint32_t row, Fields fields) {
  const auto [offsets, sizes] = find<2>(fields, {kOffsets, kSizes});
  const Dims offset = dims(offsets, "chunk has no offsets"), size = dims(sizes, "chunk has no sizes");
  if (offset.size() != size.size()) throw damaged_pickle("chunk's offsets and sizes have different numbers of dims");
  if (row_at(chunk_dims_, row) != kUnbuilt) throw damaged_pickle("chunk is built twice");
  out_.chunks[row].box = {offset, size};
  chunk_dims_[row] = static_cast<uint8_t>(offset.size());
}

void DcpFold::build_properties(std::optional<DType>& row, Cell dtype) {
  if (!dtype.is(Cell::global) || globals_[dtype].python.kind != Kind::dtype) throw damaged_pickle("tensor has no dtype");
  row = dtype_from_name(globals_[dtype].name);
  if (!row) throw unsupported_pickle("unknown dtype", globals_[dtype].full_name());
}

void DcpFold::build_tensor(TensorRow& row, Fields fields) {
  const auto [properties, size, chunks] = find<3>(fields, {kProperties, kSize, kChunks});
  if (!is_a(properties, DcpClass::tensor_properties)) throw damaged_pickle("tensor has no properties");
  if (!chunks.is(Cell::list)) throw damaged_pickle("tensor has no list of chunks");
  row.properties = properties.ref();
  row.shape = dims(size, "tensor has no size");
  if (!checked_count(row.shape)) throw damaged_pickle("tensor claims an impossible shape", dims_text(row.shape));
  take_chunks(row, store_.contents(chunks));
  row.built = true;
}

// A tensor's chunks are rows in a row, unless somebody else has them too: then they are copied.
void DcpFold::take_chunks(TensorRow& row, std::span<const Cell> chunks) {
  bool together = true;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const bool fits = is_a(chunks[i], DcpClass::chunk) && (row_at(chunk_dims_, chunks[i].ref()) & ~kTaken) == static_cast<int>(row.shape.size());
    if (!fits) throw damaged_pickle("chunk does not fit its tensor's dims");
    together = together && chunks[i].ref() == chunks[0].ref() + i && chunk_dims_[chunks[i].ref()] < kTaken;
  }
  claimed_chunks_ += chunks.size();
  if (claimed_chunks_ > most_chunks_) throw damaged_pickle("tensors share chunks that no items can be for");
  row.chunk_count = static_cast<uint32_t>(chunks.size());
  row.first_chunk = chunks.empty() ? 0 : chunks[0].ref();
  if (!together) row.first_chunk = static_cast<uint32_t>(out_.chunks.size());
  for (Cell item : chunks) {
    if (!together) {
      const Box box = out_.chunks[item.ref()].box;
      Piece& copy = out_.chunks[add_row(out_.chunks)];
      copy.source = kNoDcpFile;
      copy.box = box;
      chunk_dims_.push_back(0);
    }
    chunk_dims_[together ? item.ref() : chunk_dims_.size() - 1] = static_cast<uint8_t>(row.shape.size()) | kTaken;
  }
}

void DcpFold::build_index(IndexRow& row, Fields fields) {
  const auto [fqn, offset, hint] = find<3>(fields, {kFqn, kOffset, kIndex});
  if (!fqn.is(Cell::string)) throw damaged_pickle("entry of storage_data has no name");
  row.fqn = fqn.ref();
  row.has_offset = !offset.is(Cell::none);
  if (row.has_offset) {
    const Dims box = dims(offset, "entry of storage_data has no offset");
    row.offset = box.data();
    row.dims = static_cast<uint8_t>(box.size());
  }
  if (hint.is(Cell::integer) && hint.value() >= 0 && hint.value() < INT32_MAX) row.index = static_cast<int32_t>(hint.value());
}

void DcpFold::build_storage(InfoRow& row, Fields fields) {
  const auto [file, offset, length, transforms] = find<4>(fields, {kRelativePath, kOffset, kLength, kTransforms});
  auto bytes = [](Cell c) {
    if (!c.is(Cell::integer) || c.value() < 0) throw damaged_pickle("entry of storage_data has no offset or length");
    return static_cast<uint64_t>(c.value());
  };
  if (!file.is(Cell::string)) throw damaged_pickle("entry of storage_data has no relative_path");
  row.file = file.ref();
  row.offset = bytes(offset);
  row.length = bytes(length);
  row.built = true;
  if (transforms.is(Cell::none)) return;
  const std::vector<Cell> list = cells_of(transforms);
  row.first_transform = static_cast<uint32_t>(out_.transforms.size());
  row.transform_count = static_cast<uint8_t>(list.size());
  for (Cell t : list) {
    if (!t.is(Cell::string) || list.size() > 64) throw damaged_pickle("transforms are no list of names");
    out_.transforms.push_back(t.ref());
  }
}

// ---- sequences

std::vector<Cell> DcpFold::cells_of(Cell sequence) const {
  if (sequence.is(Cell::list)) return store_.contents(sequence);
  if (!sequence.is(Cell::tuple) && !sequence.is(Cell::size)) return {Cell()};   // nothing that anyone wants
  const std::span<const Cell> cells = store_.cells(sequence);
  return {cells.begin(), cells.end()};
}

Dims DcpFold::dims(Cell size, const char* what) {
  if (!size.is(Cell::size)) {   // an ordinary tuple or list may stand for it
    const std::vector<Cell> cells = cells_of(size);
    if (!are_integers(cells)) throw damaged_pickle(what);
    size = store_.tuple(Cell::size, cells);
  }
  if (size.n() > kMaxDims) throw damaged_pickle(what, fmt::format("{} dims", size.n()));
  const std::span<const Cell> cells = store_.cells(size);
  std::array<int64_t, kMaxDims> numbers;
  for (size_t d = 0; d < cells.size(); ++d) numbers[d] = cells[d].value();
  return dims_.store(Dims(numbers.data(), cells.size()));
}

}  // namespace fsdpctl
