#include "formats/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "lib/base/box.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kLengthField = 8;
constexpr size_t kMaxDims = 64;

// A tensor of the header while its fields are still coming.
struct Draft {
  enum Field : uint8_t { dtype = 1, shape = 2, data_offsets = 4 };
  std::string_view name;
  std::string tag;
  std::vector<int64_t> dims;
  std::vector<uint64_t> extent;
  uint8_t seen = 0;
};

std::string_view field_name(Draft::Field field) {
  return field == Draft::dtype ? "dtype" : field == Draft::shape ? "shape" : "data_offsets";
}

// The events of a header, collected into entries. Each state is a place in
// {"__metadata__": {text: text}, name: {"dtype": text, "shape": [n], "data_offsets": [n, n]}}.
class HeaderEvents : public JsonEvents {
 public:
  HeaderEvents(SafetensorsHeader& header, const std::string& file_name, Arena& arena, FindingSink& sink)
      : header_(header), file_name_(file_name), arena_(arena), sink_(sink) {}

  void begin_object() override {
    switch (place_) {
      case Place::start: place_ = Place::names; break;
      case Place::before_metadata: place_ = Place::metadata; break;
      case Place::before_tensor: place_ = Place::tensor; break;
      case Place::skipped: ++depth_; break;
      default: unexpected("an object");
    }
  }

  void key(std::string& text) override {
    switch (place_) {
      case Place::names: begin_name(text); break;
      case Place::metadata: metadata_key_ = std::move(text); break;
      case Place::tensor: begin_field(text); break;
      default: break;   // skipped
    }
  }

  void end_object() override {
    switch (place_) {
      case Place::names: place_ = Place::done; break;
      case Place::metadata: place_ = Place::names; break;
      case Place::tensor:
        end_tensor();
        place_ = Place::names;
        break;
      default: end_skipped(); break;
    }
  }

  void begin_array() override {
    switch (place_) {
      case Place::before_shape: place_ = Place::shape; break;
      case Place::before_offsets: place_ = Place::offsets; break;
      case Place::skipped: ++depth_; break;
      default: unexpected("an array");
    }
  }

  void end_array() override {
    if (place_ == Place::skipped) end_skipped();
    else place_ = Place::tensor;
  }

  void string(std::string& text) override {
    switch (place_) {
      case Place::metadata: header_.metadata.emplace_back(std::move(metadata_key_), std::move(text)); break;
      case Place::before_dtype:
        draft_.tag = std::move(text);
        place_ = Place::tensor;
        break;
      case Place::skipped: skip_scalar(); break;
      default: unexpected("a string");
    }
  }

  void number(uint64_t value) override {
    switch (place_) {
      case Place::shape:
        if (draft_.dims.size() == kMaxDims) {
          throw Error(Exit::unsupported, "tensor with too many dimensions").key(std::string(draft_.name))
              .saw(fmt::format("at most {}", kMaxDims), "more");
        }
        draft_.dims.push_back(static_cast<int64_t>(value));
        break;
      case Place::offsets:
        if (draft_.extent.size() == 2) unexpected("a third data offset");
        draft_.extent.push_back(value);
        break;
      case Place::skipped: skip_scalar(); break;
      default: unexpected("a number");
    }
  }

  void other(std::string_view what) override {
    if (place_ == Place::skipped) skip_scalar();
    else if (place_ == Place::before_metadata && what == "null") place_ = Place::names;   // the reference writes None so
    else unexpected(what);
  }

  // The tensor that the events are in; empty between tensors.
  std::string_view tensor() const { return place_ >= Place::before_tensor && place_ < Place::done ? draft_.name : std::string_view(); }
  // Entries, by position and ascending, that were reported and must be left out.
  const std::vector<uint32_t>& broken() const { return broken_; }

 private:
  enum class Place : uint8_t {
    start, names, before_metadata, metadata, before_tensor, tensor, before_dtype, before_shape, shape, before_offsets,
    offsets, skipped, done,
  };

  void begin_name(const std::string& text) {
    if (text == "__metadata__") {
      if (metadata_seen_) twice("__metadata__");
      metadata_seen_ = true;
      place_ = Place::before_metadata;
      return;
    }
    draft_.name = arena_.store(text);
    draft_.seen = 0;
    draft_.dims.clear();
    draft_.extent.clear();
    place_ = Place::before_tensor;
  }

  void begin_field(const std::string& text) {
    if (text == "dtype") take_field(Draft::dtype, Place::before_dtype);
    else if (text == "shape") take_field(Draft::shape, Place::before_shape);
    else if (text == "data_offsets") take_field(Draft::data_offsets, Place::before_offsets);
    else skip_field(text);
  }

  void take_field(Draft::Field field, Place next) {
    if (draft_.seen & field) twice(field_name(field));
    draft_.seen |= field;
    place_ = next;
  }

  void skip_field(const std::string& text) {
    if (!warned_) {
      sink_.report(warning("unknown field in a safetensors header").at(file_name_).key(std::string(draft_.name))
                       .found_only(text.substr(0, 80)));
    }
    warned_ = true;   // once per file: a writer that adds fields adds them to every tensor
    place_ = Place::skipped;
    depth_ = 0;
  }

  void end_skipped() {
    if (--depth_ == 0) place_ = Place::tensor;
  }
  void skip_scalar() {
    if (depth_ == 0) place_ = Place::tensor;
  }

  [[noreturn]] void twice(std::string_view key) {
    throw Error(Exit::unsupported, "key occurs twice in a safetensors header").key(std::string(draft_.name))
        .found_only(std::string(key));
  }

  void end_tensor();
  bool check(SafetensorsEntry& entry);
  Finding about(Exit code, std::string what) const {
    return error(code, std::move(what)).at(file_name_).key(std::string(draft_.name));
  }

  SafetensorsHeader& header_;
  const std::string& file_name_;
  Arena& arena_;
  FindingSink& sink_;
  Place place_ = Place::start;
  Draft draft_;
  std::string metadata_key_;
  uint64_t depth_ = 0;          // of what is skipped
  bool metadata_seen_ = false;
  bool warned_ = false;
  std::vector<uint32_t> broken_;
};

void HeaderEvents::end_tensor() {
  for (const Draft::Field field : {Draft::dtype, Draft::shape, Draft::data_offsets}) {
    if (draft_.seen & field) continue;
    throw Error(about(Exit::damaged, "tensor lacks a field").saw(std::string(field_name(field)), "none"));
  }
  if (draft_.extent.size() != 2) {
    throw Error(about(Exit::damaged, "data_offsets are not a pair").saw("2 numbers", fmt::format("{}", draft_.extent.size())));
  }
  SafetensorsEntry entry;
  entry.name = draft_.name;
  entry.begin = draft_.extent[0];
  entry.length = draft_.extent[1] < entry.begin ? 0 : draft_.extent[1] - entry.begin;
  // A broken tensor still covers its bytes, so that its neighbours are not reported too.
  if (!check(entry)) broken_.push_back(static_cast<uint32_t>(header_.entries.size()));
  header_.entries.push_back(entry);
}

// Fills in dtype and shape in PyTorch's terms. False when the tensor was reported and reading goes on.
bool HeaderEvents::check(SafetensorsEntry& entry) {
  auto report = [&](Exit code, std::string what, std::string expected, std::string found) {
    sink_.report(about(code, std::move(what)).saw(std::move(expected), std::move(found)));
    return false;
  };
  const std::optional<DType> dtype = dtype_of_safetensors(draft_.tag);
  if (!dtype) {
    const bool six_bits = draft_.tag == "F6_E2M3" || draft_.tag == "F6_E3M2";
    return report(Exit::unsupported, six_bits ? "6-bit floats have no PyTorch dtype" : "unknown safetensors dtype", "",
                  draft_.tag.substr(0, 40));
  }
  const bool packed = *dtype == DType::float4_e2m1fn_x2;
  const auto elements = checked_count(draft_.dims);
  uint64_t bits = 0;
  if (!elements || __builtin_mul_overflow(*elements, packed ? 4 : 8ull * item_size(*dtype), &bits)) {
    return report(Exit::damaged, "shape overflows", "", dims_text(draft_.dims));
  }
  if (draft_.extent[1] < entry.begin || bits % 8 != 0 || entry.length != bits / 8) {
    return report(Exit::damaged, "size of a tensor does not match its shape",
                  fmt::format("{} bits for {} {}", bits, draft_.tag, dims_text(draft_.dims)),
                  fmt::format("data_offsets [{}, {}]", entry.begin, draft_.extent[1]));
  }
  if (packed) {   // PyTorch's shape counts pairs of values
    if (draft_.dims.empty() || draft_.dims.back() % 2 != 0) {
      return report(Exit::unsupported, "4-bit floats do not fill bytes along the last dimension", "", dims_text(draft_.dims));
    }
    draft_.dims.back() /= 2;
  }
  entry.dtype = *dtype;
  entry.shape = arena_.store(Dims(draft_.dims));
  return true;
}

// Names that occur twice are refused outright: which one counts differs from reader to reader.
template <class Items, class NameOf>
void check_unique(const Items& items, const NameOf& name_of, const std::string& file_name) {
  std::vector<std::pair<size_t, std::string_view>> names;   // comparing hashes is several times faster than comparing names
  names.reserve(items.size());
  for (const auto& item : items) names.emplace_back(std::hash<std::string_view>()(name_of(item)), name_of(item));
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin == names.end()) return;
  throw Error(Exit::unsupported, "name occurs twice in a safetensors header").at(file_name).key(std::string(twin->second));
}

// The tensors must cover the data exactly: from 0, without holes or overlaps, to the end of the file.
void check_coverage(SafetensorsHeader& header, uint64_t data_size, const std::string& file_name, FindingSink& sink) {
  std::vector<uint32_t> order(header.entries.size());
  std::iota(order.begin(), order.end(), 0u);
  auto before = [&](uint32_t a, uint32_t b) {
    const SafetensorsEntry &x = header.entries[a], &y = header.entries[b];
    return x.begin != y.begin ? x.begin < y.begin : x.length < y.length;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);

  uint64_t covered = 0;
  std::string_view previous = "the header";
  for (const uint32_t i : order) {
    const SafetensorsEntry& e = header.entries[i];
    const uint64_t end = e.begin + e.length;   // was read as one number: cannot overflow
    if (e.begin != covered) {
      sink.report(error(Exit::damaged, e.begin > covered ? "bytes that belong to no tensor" : "tensors overlap")
                      .at(file_name).key(std::string(e.name))
                      .range(header.data_offset + std::min(e.begin, covered), header.data_offset + std::max(e.begin, covered))
                      .saw(fmt::format("data offset {} after {}", covered, previous), fmt::format("{}", e.begin)));
    }
    if (end > data_size) {
      sink.report(error(Exit::damaged, "tensor lies beyond the end of the file").at(file_name).key(std::string(e.name))
                      .saw(fmt::format("{} bytes of data", end), fmt::format("{}", data_size)));
    }
    covered = std::max(covered, end);
    previous = e.name;
  }
  if (covered < data_size) {
    sink.report(error(Exit::damaged, "trailing bytes after the last tensor").at(file_name)
                    .range(header.data_offset + covered, header.data_offset + data_size)
                    .saw(fmt::format("{} bytes of data", covered), fmt::format("{}", data_size)));
  }
}

// Leaves out what was reported: by position, and what the file does not hold.
void drop_broken(SafetensorsHeader& header, const std::vector<uint32_t>& broken, uint64_t data_size) {
  size_t kept = 0;
  auto next_broken = broken.begin();
  for (size_t i = 0; i < header.entries.size(); ++i) {
    const SafetensorsEntry& e = header.entries[i];
    const bool is_broken = next_broken != broken.end() && *next_broken == i;
    if (is_broken) ++next_broken;
    else if (e.begin + e.length <= data_size) header.entries[kept++] = e;
  }
  header.entries.resize(kept);
}

}  // namespace

SafetensorsHeader read_safetensors_header(const ReadAt& read, uint64_t file_size, const std::string& file_name,
                                          Arena& arena, FindingSink& sink) {
  if (file_size < kLengthField) {
    throw Error(Exit::damaged, "file is too short for a safetensors header").at(file_name)
        .saw("at least 8 bytes", fmt::format("{}", file_size));
  }
  std::array<std::byte, kLengthField> field;
  read(0, field);
  uint64_t length = 0;
  for (size_t i = field.size(); i-- > 0;) length = length << 8 | static_cast<uint64_t>(field[i]);
  if (length > kMaxSafetensorsHeader) {
    throw Error(Exit::damaged, "safetensors header is too long").at(file_name).range(0, kLengthField)
        .saw(fmt::format("at most {} bytes", kMaxSafetensorsHeader), fmt::format("{}", length));
  }
  if (length > file_size - kLengthField) {
    throw Error(Exit::damaged, "safetensors header ends beyond the end of the file").at(file_name).range(0, kLengthField)
        .saw(fmt::format("at most {} bytes", file_size - kLengthField), fmt::format("{}", length));
  }

  SafetensorsHeader header;
  header.data_offset = kLengthField + length;
  HeaderEvents events(header, file_name, arena, sink);
  try {
    read_json(read, kLengthField, header.data_offset, file_name, events);
  } catch (Error& e) {
    throw e.in_tensor(events.tensor());
  }
  check_unique(header.entries, [](const SafetensorsEntry& e) { return e.name; }, file_name);
  check_unique(header.metadata, [](const auto& m) { return std::string_view(m.first); }, file_name);
  const uint64_t data_size = file_size - header.data_offset;
  check_coverage(header, data_size, file_name, sink);
  drop_broken(header, events.broken(), data_size);
  return header;
}

}  // namespace fsdpctl
