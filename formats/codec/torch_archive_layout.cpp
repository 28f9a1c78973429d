#include <algorithm>
#include <array>
#include <charconv>

#include "formats/codec/little_endian.h"
#include "formats/codec/torch_archive.h"
#include "formats/codec/torch_emitter.h"
#include "formats/codec/torch_framing.h"

namespace fsdpctl {
namespace {

// Rendered bytes come in slices of about this size, so that nobody needs a buffer for a whole pickle or directory.
constexpr uint64_t kSlice = 1 << 20;
constexpr uint64_t kEntriesPerSlice = 8192;

// "archive/data/123" in a buffer of its own: made for every storage, several times.
class StorageName {
 public:
  explicit StorageName(const std::string& prefix) : text_(prefix + "/data/"), fixed_(text_.size()) {}
  std::string_view of(uint64_t storage) {
    std::array<char, 20> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), storage).ptr;
    text_.resize(fixed_);
    text_.append(digits.data(), end);
    return text_;
  }

 private:
  std::string text_;
  size_t fixed_;
};

size_t digits(uint64_t n) {
  size_t count = 1;
  for (; n >= 10; n /= 10) ++count;
  return count;
}

constexpr std::array<int64_t, 64> kZeros{};

}  // namespace

struct TorchArchiveLayout::Impl {
  // Parts of the last item.
  enum : uint32_t { kVersionPart, kIdPart, kEndPart, kDirectoryPart };   // the directory's slices come last

  const Checkpoint& checkpoint;
  std::string prefix;
  std::string front;                     // data.pkl and the small members, framed
  struct FrontMember {
    std::string full_name;
    ZipHeader header;
    uint32_t crc32;
  };
  std::vector<FrontMember> front_members;
  std::vector<TensorIndex> order;        // of the storages
  std::vector<uint64_t> begins;          // header offset of each storage, and where the last one ends
  ZipHeader version, id;
  std::vector<uint64_t> slices;          // offsets of the directory's slices, and its end
  uint64_t end = 0;

  Impl(const Checkpoint& c, const Value& tree, std::string archive_prefix) : checkpoint(c), prefix(std::move(archive_prefix)) {
    write_front(tree);
    place_storages();
    version = plan_zip_member(begins.back(), full(kVersionName).size(), kVersion.size());
    id = plan_zip_member(version.end_offset, full(kIdName).size(), kIdSize);
    place_directory();
  }

  std::string full(std::string_view name) const { return prefix + "/" + std::string(name); }
  uint64_t storages() const { return order.size(); }
  uint64_t members() const { return front_members.size() + storages() + 2; }

  void write_front(const Value& tree) {
    std::string pickle;
    TorchEmitter emitter(checkpoint);
    PickleWriter writer(pickle, emitter);
    writer.begin();
    writer.value(tree);
    writer.end();
    order = emitter.take_order();
    order.shrink_to_fit();
    front.reserve(pickle.size() + 1024);
    add_front_member("data.pkl", pickle);
    for (const SmallMember& m : kBeforeStorages) add_front_member(m.name, m.content);
  }

  void add_front_member(std::string_view name, std::string_view content) {
    const std::string full_name = full(name);
    front_members.push_back({full_name, plan_zip_member(front.size(), full_name.size(), content.size()), crc32(byte_view(content))});
    write_small_member(front.size(), full_name, content, front);
  }

  void place_storages() {
    begins.reserve(storages() + 1);
    begins.push_back(front.size());
    for (uint64_t i = 0; i < storages(); ++i) begins.push_back(header(i).end_offset);
  }

  ZipHeader header(uint64_t storage) const {
    return plan_zip_member(begins[storage], name_size(storage), checkpoint.bytes_of(order[storage]));
  }
  uint32_t storage_crc(uint64_t storage, const ItemCrcs& crcs) const {   // item 0 is the front
    return checkpoint.bytes_of(order[storage]) == 0 ? 0 : crcs.crc32(1 + storage);
  }
  size_t name_size(uint64_t storage) const { return prefix.size() + 6 + digits(storage); }

  // Slices hold kEntriesPerSlice storages each; the first also what precedes them, the last what follows.
  void place_directory() {
    uint64_t at = id.end_offset;
    slices.push_back(at);
    for (const FrontMember& m : front_members) at += zip_central_size(m.header, m.full_name.size());
    for (uint64_t i = 0; i < storages(); ++i) {
      if (i > 0 && i % kEntriesPerSlice == 0) slices.push_back(at);
      at += zip_central_size(header(i), name_size(i));
    }
    at += zip_central_size(version, full(kVersionName).size()) + zip_central_size(id, full(kIdName).size());
    slices.push_back(at);
    end = at + kZipEndSize;
  }

  void render_directory(uint64_t slice, const ItemCrcs& crcs, std::string& out) const {
    if (slice == 0) {
      for (const FrontMember& m : front_members) write_zip_central(m.header, m.full_name, m.crc32, out);
    }
    StorageName name(prefix);
    const uint64_t stop = std::min(storages(), (slice + 1) * kEntriesPerSlice);
    for (uint64_t i = slice * kEntriesPerSlice; i < stop; ++i) {
      write_zip_central(header(i), name.of(i), storage_crc(i, crcs), out);
    }
    if (slice + 2 == slices.size()) {
      write_zip_central(version, full(kVersionName), crc32(byte_view(kVersion)), out);
      write_zip_central(id, full(kIdName), crc32(byte_view(id_text(crcs))), out);
    }
  }

  std::string id_text(const ItemCrcs& crcs) const {
    SerializationId text;
    for (const FrontMember& m : front_members) text.name(m.full_name), text.crc(m.crc32);
    StorageName name(prefix);
    for (uint64_t i = 0; i < storages(); ++i) text.name(name.of(i)), text.crc(storage_crc(i, crcs));
    return text.text();
  }
};

TorchArchiveLayout::TorchArchiveLayout(const Checkpoint& checkpoint, const Value& tree, std::string prefix)
    : impl_(std::make_unique<Impl>(checkpoint, tree, std::move(prefix))) {}
TorchArchiveLayout::~TorchArchiveLayout() = default;
TorchArchiveLayout::TorchArchiveLayout(TorchArchiveLayout&&) noexcept = default;

uint64_t TorchArchiveLayout::size() const { return impl_->end; }
uint64_t TorchArchiveLayout::item_count() const { return impl_->storages() + 2; }

uint64_t TorchArchiveLayout::item_offset(uint64_t item) const {
  if (item == 0) return 0;
  return item < item_count() ? impl_->begins[item - 1] : impl_->end;
}

void TorchArchiveLayout::segments(uint64_t item, SegmentList& out) const {
  out.segments.clear();
  const auto add = [&out](Segment::Kind kind, uint64_t begin, uint64_t end, uint32_t part) {
    Segment s;
    s.kind = kind;
    s.offset = begin;
    s.length = end - begin;
    s.part = part;
    if (s.length > 0) out.segments.push_back(s);
  };
  if (item == 0) {
    for (uint64_t at = 0; at < impl_->front.size(); at += kSlice) {
      add(Segment::Kind::rendered, at, std::min(at + kSlice, impl_->front.size()), 0);
    }
  } else if (item <= impl_->storages()) {
    const ZipHeader h = impl_->header(item - 1);
    const uint64_t data_end = h.data_offset + h.data_size;
    add(Segment::Kind::rendered, h.header_offset, h.data_offset, 0);
    if (h.data_size == 0) return;
    add(Segment::Kind::tensor, h.data_offset, data_end, 0);
    Segment& tensor = out.segments.back();
    tensor.tensor = impl_->order[item - 1];
    const Dims shape = impl_->checkpoint.tensors[tensor.tensor].shape;
    tensor.box = {Dims(kZeros).first(shape.size()), shape};
    add(Segment::Kind::rendered_late, data_end, h.end_offset, 1);
  } else {
    add(Segment::Kind::rendered, impl_->version.header_offset, impl_->version.end_offset, Impl::kVersionPart);
    add(Segment::Kind::rendered_late, impl_->id.header_offset, impl_->id.end_offset, Impl::kIdPart);
    const auto& slices = impl_->slices;
    for (uint32_t i = 0; i + 1 < slices.size(); ++i) {
      add(Segment::Kind::rendered_late, slices[i], slices[i + 1], Impl::kDirectoryPart + i);
    }
    add(Segment::Kind::rendered, slices.back(), impl_->end, Impl::kEndPart);
  }
}

void TorchArchiveLayout::render(uint64_t item, const Segment& segment, const ItemCrcs* crcs, std::string& out) const {
  if (item == 0) {
    out.append(impl_->front, segment.offset, segment.length);
  } else if (item <= impl_->storages()) {
    const ZipHeader h = impl_->header(item - 1);
    if (segment.part == 0) write_zip_local(h, StorageName(impl_->prefix).of(item - 1), out);
    else write_zip_descriptor(h, crcs->crc32(item), out);
  } else if (segment.part == Impl::kVersionPart) {
    write_small_member(impl_->version.header_offset, impl_->full(kVersionName), kVersion, out);
  } else if (segment.part == Impl::kIdPart) {
    write_small_member(impl_->id.header_offset, impl_->full(kIdName), impl_->id_text(*crcs), out);
  } else if (segment.part == Impl::kEndPart) {
    write_zip_end(impl_->slices.front(), impl_->slices.back() - impl_->slices.front(), impl_->members(), out);
  } else {
    impl_->render_directory(segment.part - Impl::kDirectoryPart, *crcs, out);
  }
}

std::string torch_archive_prefix(std::string_view file_name) {
  file_name = file_name.substr(file_name.find_last_of("/\\") + 1);   // npos + 1 is 0
  const std::string_view prefix = file_name.substr(0, file_name.rfind('.'));
  const bool ascii = std::all_of(prefix.begin(), prefix.end(), [](char c) { return static_cast<signed char>(c) > 0; });
  return prefix.empty() || !ascii ? "archive" : std::string(prefix);
}

}  // namespace fsdpctl
