// Archives that hold one bare tensor: the items of a .distcp, by the hundred thousand. Items as PyTorch and fsdpctl
// write them are recognised byte by byte; anything else goes the long way, through read_torch_archive.
#include <algorithm>
#include <array>
#include <cstring>

#include "formats/codec/little_endian.h"
#include "formats/codec/torch_archive_reader.h"
#include "formats/codec/torch_storage_class.h"
#include "formats/codec/torch_view.h"

namespace fsdpctl {
namespace {

// Bytes of the item: from the ends that the caller holds, or read.
class Window {
 public:
  Window(Bytes head, Bytes tail, uint64_t length, const ZipRead& read)
      : head_(head), tail_(tail), length_(length), tail_offset_(length - tail.size()), read_(read) {}

  // Valid until the next call with the same scratch. Empty where the item has no such bytes.
  Bytes at(uint64_t offset, uint64_t size, std::vector<std::byte>& scratch) const {
    if (offset > length_ || size > length_ - offset) return {};
    if (offset + size <= head_.size()) return head_.subspan(offset, size);
    if (offset >= tail_offset_) return tail_.subspan(offset - tail_offset_, size);
    scratch.resize(size);
    read_(offset, scratch);
    return scratch;
  }

 private:
  Bytes head_, tail_;
  uint64_t length_, tail_offset_;
  const ZipRead& read_;
};

// The pickle of a bare tensor, as every release since 1.6 writes it; memo opcodes may be missing.
class BareTensorPickle {
 public:
  explicit BareTensorPickle(Bytes stream) : at_(text_of(stream)) {}

  // False: not of this form.
  bool parse(TensorItem& item, std::string_view& key, uint64_t& numel, bool& untyped, uint64_t& offset) {
    bool v3 = false;
    if (!skip("\x80\2c" "torch._utils\n_rebuild_tensor_v")) return false;
    if (skip("3\n")) v3 = true;
    else if (!skip("2\n")) return false;
    std::string_view location, word;
    if (!memo() || !skip("((") || !string(word) || word != "storage") return false;
    if (!storage(item, untyped) || !string(key) || !string(location) || !integer(numel)) return false;
    if (!skip("t") || !memo() || !skip("Q") || !integer(offset)) return false;
    if (!dims(item.shape) || !dims(item.strides) || item.shape.size() != item.strides.size()) return false;
    if (!skip("\x88") && !skip("\x89")) return false;
    if (!skip("ccollections\nOrderedDict\n") || !memo() || !skip(")R") || !memo()) return false;
    if (v3 && !dtype(item)) return false;
    if (untyped != v3) return false;
    return skip("t") && memo() && skip("R") && memo() && at_ == ".";
  }

 private:
  static std::string_view text_of(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

  bool skip(std::string_view expected) {
    if (!at_.starts_with(expected)) return false;
    at_.remove_prefix(expected.size());
    return true;
  }
  bool memo() {   // optional
    const size_t size = at_.empty() ? 0 : at_[0] == 'q' ? 2 : at_[0] == 'r' ? 5 : 0;
    if (size > at_.size()) return false;
    at_.remove_prefix(size);
    return true;
  }
  bool string(std::string_view& out) {
    if (at_.size() < 5 || at_[0] != 'X') return false;
    const uint32_t size = get_u32(reinterpret_cast<const std::byte*>(at_.data()) + 1);
    if (size > at_.size() - 5) return false;
    out = at_.substr(5, size);
    at_.remove_prefix(5 + size);
    return std::all_of(out.begin(), out.end(), [](char c) { return static_cast<signed char>(c) > 0; }) && memo();
  }
  bool integer(uint64_t& out) {
    const auto* bytes = reinterpret_cast<const std::byte*>(at_.data());
    if (at_.empty()) return false;
    const size_t size = at_[0] == 'K' ? 1 : at_[0] == 'M' ? 2 : at_[0] == 'J' ? 4 : at_[0] == '\x8A' && at_.size() > 1 ? 1 + static_cast<uint8_t>(at_[1]) : 0;
    if (size == 0 || at_.size() < 1 + size) return false;
    if (size == 1 && at_[0] == 'K') out = static_cast<uint8_t>(bytes[1]);
    else if (at_[0] == 'M') out = get_u16(bytes + 1);
    else if (at_[0] == 'J') out = static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(get_u32(bytes + 1))));
    else if (!long_integer(bytes + 2, size - 1, out)) return false;
    at_.remove_prefix(1 + size);
    return static_cast<int64_t>(out) >= 0;
  }
  static bool long_integer(const std::byte* bytes, size_t size, uint64_t& out) {
    if (size == 0 || size > 8) return false;
    out = 0;
    for (size_t i = 0; i < size; ++i) out |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return (static_cast<uint8_t>(bytes[size - 1]) & 0x80) == 0;
  }
  bool dims(std::vector<int64_t>& out) {
    out.clear();
    if (skip(")")) return true;
    const bool many = skip("(");
    while (!at_.empty() && at_[0] != 't' && at_[0] != '\x85' && at_[0] != '\x86' && at_[0] != '\x87') {
      uint64_t n = 0;
      if (!integer(n) || out.size() == 64) return false;
      out.push_back(static_cast<int64_t>(n));
    }
    if (at_.empty() || out.empty()) return false;
    const size_t closes = at_[0] == 't' ? 0 : static_cast<uint8_t>(at_[0]) - 0x84u;
    at_.remove_prefix(1);
    return (many ? closes == 0 : closes == out.size()) && memo();
  }
  bool global(std::string_view module, std::string_view& name) {
    if (!skip("c") || !skip(module) || !skip("\n")) return false;
    const size_t end = at_.find('\n');
    if (end == std::string_view::npos) return false;
    name = at_.substr(0, end);
    at_.remove_prefix(end + 1);
    return memo();
  }
  bool storage(TensorItem& item, bool& untyped) {
    const std::string_view module = at_.starts_with("ctorch.storage\n") ? "torch.storage" : "torch";
    std::string_view name;
    if (!global(module, name)) return false;
    const auto type = storage_class(module, name);
    if (!type || dtype_kind(type->dtype) == DTypeKind::quantized) return false;
    item.dtype = type->dtype;
    untyped = type->untyped;
    return true;
  }
  bool dtype(TensorItem& item) {
    std::string_view name;
    if (!global("torch", name)) return false;
    const auto type = dtype_from_name(name);
    if (!type || dtype_kind(*type) == DTypeKind::quantized) return false;
    item.dtype = *type;
    return true;
  }

  std::string_view at_;
};

// The members of an item: those of kItemNames, in that order, then the storage.
constexpr std::string_view kItemNames[] = {"data.pkl", "byteorder", "version", ".format_version", ".storage_alignment",
                                           ".data/serialization_id"};
enum : size_t { kPickle, kByteOrder, kVersion, kStorage = std::size(kItemNames), kItemMembers };

struct ItemMember {
  bool present = false;
  ZipEntry entry;
  uint64_t data_offset = 0;
};
using ItemMembers = std::array<ItemMember, kItemMembers>;

// Which of them this is; kItemMembers: none.
size_t item_member(std::string_view name) {
  const auto which = static_cast<size_t>(std::find(std::begin(kItemNames), std::end(kItemNames), name) - std::begin(kItemNames));
  return which < kStorage || name.starts_with("data/") ? which : kItemMembers;
}

// Reads the directory and every local header. False: members out of order, overlapping, unknown or missing.
bool read_members(const Window& window, const ZipEnd& end, const std::string& name, uint64_t base, ItemMembers& members) {
  std::vector<std::byte> directory_bytes, header_bytes;
  ZipDirectory directory(window.at(end.directory_offset, end.directory_size, directory_bytes), end, name, base);
  std::string_view prefix;
  uint64_t free_from = 0;
  for (ZipEntry e; directory.next(e);) {
    const size_t slash = e.full_name.find('/');
    if (slash == std::string_view::npos || e.method != kZipStored || e.header_offset < free_from) return false;
    if (prefix.empty()) prefix = e.full_name.substr(0, slash);
    if (e.full_name.substr(0, slash) != prefix) return false;
    const size_t which = item_member(e.full_name.substr(slash + 1));
    if (which == kItemMembers || members[which].present) return false;
    const Bytes header = window.at(e.header_offset, kZipLocalHeader + e.full_name.size(), header_bytes);
    const bool described = has_zip_descriptor(header, e);
    const uint64_t at = zip_data_offset(header, e, end, name, base);
    free_from = at + e.stored_size;
    if (described && free_from + kZipDescriptorHead <= end.directory_offset) {
      check_zip_descriptor(window.at(free_from, kZipDescriptorHead, header_bytes), e, base + free_from, name);
    }
    members[which] = {true, e, at};
  }
  return members[kPickle].present && members[kVersion].present && members[kStorage].present;
}

// A small member that PyTorch always writes the same.
bool is_usual(const Window& window, const ItemMember& member, std::string_view content) {
  if (member.entry.size != content.size()) return false;
  std::vector<std::byte> scratch;
  const Bytes bytes = window.at(member.data_offset, content.size(), scratch);
  if (std::memcmp(bytes.data(), content.data(), content.size()) != 0) return false;
  return member.entry.crc32 == 0 || member.entry.crc32 == crc32(bytes);
}

bool fill_view(TensorItem& item, uint64_t bytes, uint64_t offset) {
  const uint64_t size = item_size(item.dtype), elements = bytes / size;
  const auto count = checked_count(item.shape);
  if (!count || *count / (1 << 20) > elements) return false;
  const auto used = *count == 0 ? 0 : view_extent(item.shape, item.strides);
  if (*count == 0) offset = 0;
  if (!used || offset > elements || *used > elements - offset) return false;
  item.data_offset += offset * size;
  item.data_length = *used * size;
  if (*count == 0 || is_row_major(item.shape, item.strides)) item.strides.clear();
  return true;
}

// False: the item is not exactly what PyTorch writes, so the long way has to look at it (and find what is wrong).
bool read_plain_item(const Window& window, Bytes tail, uint64_t length, const std::string& name, uint64_t base,
                     TensorItem& item) {
  constexpr uint64_t kEnd = 22;
  if (tail.size() > length || tail.size() < kZipEndSize || get_u32(tail.data() + tail.size() - kEnd) != 0x06054B50) return false;
  const ZipEnd end = find_zip_end(tail, length, name, base);
  if (end.entries > 8 || end.directory_size > 4096) return false;
  ItemMembers members;
  if (!read_members(window, end, name, base, members)) return false;
  if (members[kByteOrder].present && !is_usual(window, members[kByteOrder], "little")) return false;
  if (!is_usual(window, members[kVersion], "3\n")) return false;

  const ZipEntry& pickle = members[kPickle].entry;
  if (pickle.size > 4096) return false;
  std::vector<std::byte> scratch;
  const Bytes stream = window.at(members[kPickle].data_offset, pickle.size, scratch);
  if (pickle.crc32 != 0 && crc32(stream) != pickle.crc32) return false;
  const ItemMember& storage = members[kStorage];
  const std::string_view file_key = storage.entry.full_name.substr(storage.entry.full_name.find('/') + 6);
  std::string_view key;
  uint64_t numel = 0, offset = 0, bytes = 0;
  bool untyped = false;
  if (!BareTensorPickle(stream).parse(item, key, numel, untyped, offset) || key != file_key) return false;
  if (__builtin_mul_overflow(numel, untyped ? 1 : item_size(item.dtype), &bytes) || bytes != storage.entry.size) return false;
  item.data_offset = storage.data_offset;
  if (!fill_view(item, bytes, offset)) return false;
  item.has_crc32 = storage.entry.crc32 != 0 && item.data_offset == storage.data_offset && item.data_length == bytes;
  item.crc32 = item.has_crc32 ? storage.entry.crc32 : 0;
  return true;
}

TensorItem read_any_item(uint64_t length, const ZipRead& read, const std::string& name, uint64_t base) {
  Checkpoint scratch;
  FindingSink sink;
  const Value value = read_torch_archive(scratch, {read, length, name, base, 0}, 0, sink);
  if (value.is(Kind::object)) {   // quantised, sparse, a subclass: nothing can carry it from here
    throw Error(Exit::unsupported, "item is a special tensor, not a plain one")
        .at(name).range(base, base + length).found_only(value.node<ObjectNode>().class_name());
  }
  if (!value.is(Kind::tensor) || scratch.pieces.size() != 1) {
    throw Error(Exit::damaged, "item is not a tensor").at(name).range(base, base + length);
  }
  const Piece& piece = scratch.pieces.front();
  if (piece.encoding != Encoding::raw) {
    throw Error(Exit::unsupported, "compressed storage inside a distributed checkpoint").at(name).range(base, base + length);
  }
  TensorItem item;
  item.dtype = piece.stored;
  item.shape.assign(piece.box.size.begin(), piece.box.size.end());
  item.strides.assign(piece.strides.begin(), piece.strides.end());
  item.data_offset = piece.offset - base;
  item.data_length = piece.length;
  item.swap = piece.swap, item.conj = piece.conj, item.neg = piece.neg;
  item.has_crc32 = piece.has_crc32;
  item.crc32 = piece.crc32;
  return item;
}

}  // namespace

TensorItem read_tensor_item(Bytes head, Bytes tail, uint64_t length, const ZipRead& read, const std::string& name,
                            uint64_t base) {
  TensorItem item;
  if (head.size() <= length && read_plain_item(Window(head, tail, length, read), tail, length, name, base, item)) return item;
  return read_any_item(length, read, name, base);
}

}  // namespace fsdpctl
