#include "formats/dcp_bytes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "formats/codec/torch_archive_reader.h"
#include "formats/dcp_items.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kWindow = 4 << 20;
constexpr uint64_t kGap = 64 << 10;
constexpr uint64_t kMostDecoded = uint64_t{1} << 30;

// Byte items lie side by side at the beginning of a file: a window over many of them.
class Window {
 public:
  explicit Window(const Source& source) : source_(source) {}

  // Holds `item`, if it is not too big, and what follows it.
  void move_to(const std::vector<DcpByteItem>& items, std::span<const uint32_t> order) {
    const DcpByteItem& first = items[order[0]];
    if (holds(first.file, first.offset, first.length)) return;
    uint64_t end = first.offset;
    for (uint32_t i : order) {
      const DcpByteItem& item = items[i];
      if (item.file != first.file || item.offset > end + kGap || item.offset + item.length - first.offset > kWindow) break;
      end = std::max(end, item.offset + item.length);
    }
    file_ = first.file;
    begin_ = first.offset;
    bytes_.resize(end - begin_);
    source_.read(file_, begin_, bytes_);
  }

  void read(SourceIndex file, uint64_t offset, std::span<std::byte> out) const {
    if (holds(file, offset, out.size())) std::memcpy(out.data(), bytes_.data() + (offset - begin_), out.size());
    else source_.read(file, offset, out);
  }

 private:
  bool holds(SourceIndex file, uint64_t offset, uint64_t length) const {
    return file == file_ && offset >= begin_ && offset - begin_ <= bytes_.size() && length <= bytes_.size() - (offset - begin_);
  }
  const Source& source_;
  SourceIndex file_ = 0;
  uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

Value read_item(Checkpoint& checkpoint, const Window& window, const DcpByteItem& item, SharingBudget& sharing, FindingSink& sink) {
  if (item.zstd) {
    const auto spooled = spool_zstd(*checkpoint.source, item.file, item.offset, item.length, kMostDecoded);
    const SourceIndex spool = spooled.first;
    const uint64_t length = spooled.second;
    const ZipRead read = [&checkpoint, file = spool](uint64_t at, std::span<std::byte> out) { checkpoint.source->read(file, at, out); };
    return read_torch_archive(checkpoint, {read, length, checkpoint.source->file(spool).name, 0, spool, &sharing}, item.rank, sink);
  }
  const ZipRead read = [&](uint64_t at, std::span<std::byte> out) { window.read(item.file, item.offset + at, out); };
  const std::string& name = checkpoint.source->file(item.file).name;
  return read_torch_archive(checkpoint, {read, item.length, name, item.offset, item.file, &sharing}, item.rank, sink);
}

}  // namespace

std::vector<Value> read_byte_items(Checkpoint& checkpoint, const std::vector<DcpByteItem>& items, FindingSink& sink) {
  std::vector<uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return items[a].file != items[b].file ? items[a].file < items[b].file : items[a].offset < items[b].offset;
  });
  std::vector<Value> values(items.size());
  Window window(*checkpoint.source);
  SharingBudget sharing;
  for (size_t i = 0; i < order.size(); ++i) {
    const DcpByteItem& item = items[order[i]];
    try {
      window.move_to(items, std::span(order).subspan(i));
      values[order[i]] = read_item(checkpoint, window, item, sharing, sink);
    } catch (Error& e) {
      if (e.code() != Exit::damaged && e.code() != Exit::unsupported) throw;
      Finding f = e.in_file(checkpoint.source->file(item.file).name).in_tensor(item.fqn).finding();
      f.where.rank = item.rank;
      sink.report(std::move(f));
    }
  }
  return values;
}

bool same_bytes(const Source& source, const DcpByteItem& a, const DcpByteItem& b) {
  if (a.length != b.length) return false;
  std::vector<std::byte> left(std::min<uint64_t>(a.length, kGap)), right(left.size());
  for (uint64_t at = 0; at < a.length; at += left.size()) {
    const auto n = static_cast<size_t>(std::min<uint64_t>(left.size(), a.length - at));
    source.read(a.file, a.offset + at, std::span(left).first(n));
    source.read(b.file, b.offset + at, std::span(right).first(n));
    if (std::memcmp(left.data(), right.data(), n) != 0) return false;
  }
  return true;
}

}  // namespace fsdpctl
