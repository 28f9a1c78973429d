#include "tests/support/written_checkpoint.h"

#include <algorithm>

#include "lib/base/checksum.h"
#include "lib/base/element_ops.h"

namespace fsdpctl {
namespace {

int64_t below(Random& random, int64_t limit) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
}

// Row-major positions of a shape, one after the other.
bool next_index(std::vector<int64_t>& index, Dims shape) {
  for (size_t d = shape.size(); d-- > 0;) {
    if (++index[d] < shape[d]) return true;
    index[d] = 0;
  }
  return false;
}

uint64_t flat_index(Dims index, Dims offset, Dims shape) {
  uint64_t flat = 0;
  for (size_t d = 0; d < shape.size(); ++d) flat = flat * static_cast<uint64_t>(shape[d]) + static_cast<uint64_t>(index[d] + offset[d]);
  return flat;
}

std::vector<std::pair<int64_t, int64_t>> chunks(int64_t n, int parts) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int i = 0; i < parts; ++i) result.push_back(chunk_extent(n, parts, i));
  return result;
}

// A box and which part it belongs to: a flat range needs several boxes.
struct PartBox {
  Box box;
  int part = 0;
};

std::vector<PartBox> flat_boxes(Arena& arena, Dims shape, int parts) {
  std::vector<PartBox> boxes;
  const auto ranges = chunks(static_cast<int64_t>(count(shape)), parts);
  for (int part = 0; part < parts; ++part) {
    const auto begin = static_cast<uint64_t>(ranges[part].first), end = begin + static_cast<uint64_t>(ranges[part].second);
    for (const Box& box : flat_range_boxes(arena, shape, begin, end)) boxes.push_back({box, part});
  }
  return boxes;
}

std::vector<PartBox> cut_boxes(Arena& arena, const WrittenTensor& wanted, Dims shape) {
  if (shape.empty() || wanted.cut == Cut::whole) return {{whole_box(arena, shape), 0}};
  if (wanted.cut == Cut::flat) return flat_boxes(arena, shape, wanted.parts);
  const size_t last = shape.size() - 1, first = wanted.cut == Cut::dim ? static_cast<size_t>(wanted.dim) : 0;
  const auto first_cut = chunks(shape[first], wanted.cut == Cut::columns ? 1 : wanted.parts);
  const bool once = wanted.cut == Cut::rows || wanted.cut == Cut::dim || last == 0;
  const auto last_cut = chunks(shape[last], once ? 1 : wanted.parts);
  std::vector<PartBox> boxes;
  for (const auto& row : first_cut) {
    for (const auto& column : last_cut) {
      const std::span<int64_t> offset = arena.dims(shape.size()), size = arena.dims(shape.size());
      for (size_t d = 0; d < shape.size(); ++d) {
        offset[d] = 0;
        size[d] = shape[d];
      }
      if (!once) {
        offset[last] = column.first;
        size[last] = column.second;
      }
      offset[first] = row.first;
      size[first] = row.second;
      boxes.push_back({{offset, size}, static_cast<int>(boxes.size())});
    }
  }
  return boxes;
}

// Strides of a box of this size, in elements.
std::vector<int64_t> strides_of(Dims size, Order order) {
  std::vector<int64_t> strides(size.size());
  int64_t stride = 1;
  for (size_t i = 0; i < size.size(); ++i) {
    const size_t d = order == Order::transposed ? i : size.size() - 1 - i;
    strides[d] = stride;
    stride *= std::max<int64_t>(size[d], 1) + (order == Order::padded ? 3 : 0);
  }
  if (order == Order::expanded && !strides.empty()) strides[strides.size() / 2] = 0;
  return strides;
}

void fill(Random& random, std::string& bytes) {
  for (char& c : bytes) c = static_cast<char>(random());
}

}  // namespace

std::string file_name(size_t file) { return "data" + std::to_string(file) + ".bin"; }

WrittenCheckpoint::WrittenCheckpoint(uint64_t seed, int file_count, TempDir::Place place)
    : files(static_cast<size_t>(file_count)), random(seed), directory_(place) {}

TensorIndex WrittenCheckpoint::add(const WrittenTensor& wanted) {
  const auto t = static_cast<TensorIndex>(checkpoint.tensors.size());
  TensorInfo info;
  info.key = checkpoint.arena->store("tensor" + std::to_string(t));
  info.shape = checkpoint.arena->store(Dims(wanted.shape));
  info.dtype = wanted.dtype;
  info.first_piece = static_cast<PieceIndex>(checkpoint.pieces.size());
  checkpoint.tensors.push_back(info);

  const uint32_t item = item_size(wanted.dtype);
  std::string bytes(count(info.shape) * item, '\0');
  fill(random, bytes);
  if (wanted.order == Order::expanded && !wanted.shape.empty() && !bytes.empty()) {
    // What is expanded on disk repeats in the tensor.
    const size_t d = wanted.shape.size() / 2;
    std::vector<int64_t> index(wanted.shape.size()), zeros(wanted.shape.size());
    do {
      std::vector<int64_t> origin = index;
      origin[d] = 0;
      const uint64_t to = flat_index(index, zeros, info.shape) * item, from = flat_index(origin, zeros, info.shape) * item;
      std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(from), item, bytes.begin() + static_cast<ptrdiff_t>(to));
    } while (next_index(index, info.shape));
  }
  content.push_back(std::move(bytes));

  std::vector<PartBox> boxes = cut_boxes(*checkpoint.arena, wanted, info.shape);
  std::stable_sort(boxes.begin(), boxes.end(), [](const PartBox& a, const PartBox& b) {
    return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(), b.box.offset.begin(), b.box.offset.end());
  });
  for (const PartBox& box : boxes) {
    for (int r = 0; r < wanted.replicas; ++r) add_piece(t, wanted, box.box, box.part * wanted.replicas + r, r > 0);
  }
  checkpoint.tensors[t].piece_count = static_cast<uint32_t>(checkpoint.pieces.size()) - info.first_piece;
  return t;
}

void WrittenCheckpoint::add_piece(TensorIndex t, const WrittenTensor& wanted, const Box& box, int rank, bool damaged) {
  const uint32_t item = item_size(wanted.dtype);
  const std::vector<int64_t> strides = strides_of(box.size, wanted.order);
  uint64_t span = is_empty(box) ? 0 : item;
  if (!is_empty(box)) {
    for (size_t d = 0; d < strides.size(); ++d) span += static_cast<uint64_t>((box.size[d] - 1) * strides[d]) * item;
  }
  std::string bytes(span, '\0');
  fill(random, bytes);
  std::vector<int64_t> index(box.size.size()), zeros(box.size.size());
  if (span != 0 && !damaged) {
    do {
      const uint64_t from = flat_index(index, box.offset, checkpoint.tensors[t].shape) * item;
      std::string element = content[t].substr(from, item);
      const std::span<std::byte> raw = std::as_writable_bytes(std::span(element));
      if (wanted.neg) negate(wanted.dtype, raw);
      if (wanted.conj) conjugate(wanted.dtype, raw);
      if (wanted.swap) swap_bytes(wanted.dtype, raw);
      uint64_t to = 0;
      for (size_t d = 0; d < strides.size(); ++d) to += static_cast<uint64_t>(index[d] * strides[d]) * item;
      bytes.replace(to, item, element);
    } while (next_index(index, box.size));
  }
  const size_t file = static_cast<size_t>(rank) % files.size();
  std::string gap(static_cast<size_t>(below(random, 40)), '\0');
  fill(random, gap);
  files[file] += gap;
  Piece piece;
  piece.tensor = t;
  piece.rank = rank;
  piece.box = box;
  piece.source = static_cast<SourceIndex>(file);
  piece.stored = wanted.dtype;
  piece.swap = wanted.swap;
  piece.conj = wanted.conj;
  piece.neg = wanted.neg;
  piece.has_crc32 = wanted.crc32;
  piece.crc32 = crc32(as_bytes(bytes));
  piece.offset = files[file].size();
  piece.length = bytes.size();
  if (wanted.order != Order::row_major) piece.strides = checkpoint.arena->store(Dims(strides));
  files[file] += bytes;
  checkpoint.pieces.push_back(piece);
}

void WrittenCheckpoint::write() {
  for (size_t i = 0; i < files.size(); ++i) write_new_file(directory_ / file_name(i), files[i]);
  checkpoint.source = Source::open(directory_.path());
  for (size_t i = 0; i < files.size(); ++i) checkpoint.source->add(file_name(i));
}

std::string WrittenCheckpoint::region_bytes(TensorIndex t, const Box& region) const {
  const TensorInfo& info = checkpoint.tensors[t];
  const uint32_t item = item_size(checkpoint.pieces_of(t).front().stored);
  std::string bytes;
  if (is_empty(region)) return bytes;
  std::vector<int64_t> index(info.shape.size());
  do {
    bytes.append(content[t], flat_index(index, region.offset, info.shape) * item, item);
  } while (next_index(index, region.size));
  return bytes;
}

Box WrittenCheckpoint::random_region(TensorIndex t) {
  const Dims shape = checkpoint.tensors[t].shape;
  const std::span<int64_t> offset = checkpoint.arena->dims(shape.size()), size = checkpoint.arena->dims(shape.size());
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool all = below(random, 2) == 0;
    offset[d] = all ? 0 : below(random, shape[d]);
    size[d] = all ? shape[d] : 1 + below(random, shape[d] - offset[d]);
  }
  return {offset, size};
}

WrittenTensor random_tensor(Random& random) {
  constexpr DType kDTypes[] = {DType::uint8,   DType::boolean, DType::bfloat16,  DType::int16,      DType::float32,
                               DType::float64, DType::int64,   DType::complex64, DType::complex128, DType::complex32};
  constexpr Cut kCuts[] = {Cut::whole, Cut::rows, Cut::columns, Cut::grid, Cut::flat};
  constexpr Order kOrders[] = {Order::row_major, Order::row_major, Order::transposed, Order::padded, Order::expanded};
  WrittenTensor made;
  made.dtype = kDTypes[below(random, 10)];
  const int64_t dims = below(random, 5);
  constexpr int64_t kLongest[] = {1, 5000, 90, 20, 9};
  for (int64_t d = 0; d < dims; ++d) {
    made.shape.push_back(below(random, 12) == 0 ? below(random, 2) : 1 + below(random, kLongest[dims]));
  }
  made.cut = kCuts[below(random, 5)];
  made.parts = static_cast<int>(1 + below(random, 9));
  made.order = kOrders[below(random, 5)];
  made.swap = below(random, 4) == 0;
  made.conj = below(random, 4) == 0;
  made.neg = made.dtype != DType::boolean && below(random, 4) == 0;
  made.crc32 = below(random, 2) == 0;
  made.replicas = static_cast<int>(1 + below(random, 2));
  return made;
}

}  // namespace fsdpctl
