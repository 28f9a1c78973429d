#include "formats/dcp_items.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "formats/codec/torch_archive.h"
#include "lib/base/file.h"
#include "lib/base/temporary.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kWhole = 16 << 10;        // items up to this size are read as a whole
constexpr uint64_t kGap = 4 << 10;           // bytes that are cheaper to read than to leap over
constexpr uint64_t kWindow = 1 << 20;
constexpr uint64_t kAlignment = 64;

// ---- zstd

class Decoder {
 public:
  Decoder() : stream_(ZSTD_createDStream()), in_(ZSTD_DStreamInSize()), out_(ZSTD_DStreamOutSize()) {
    if (!stream_) throw Error(Exit::failed, "cannot start zstd");
  }

  // Appends to `spool` at `at`; the decoded length.
  uint64_t decode(const Source& source, SourceIndex file, uint64_t offset, uint64_t length, uint64_t limit, FileHandle& spool, uint64_t at) {
    ZSTD_initDStream(stream_.get());
    uint64_t read = 0, made = 0;
    size_t wanted = 1;                       // 0: between frames
    auto damaged = [&](std::string found) {
      return Error(Exit::damaged, "zstd stream is damaged").at(source.file(file).name).range(offset, offset + length).found_only(std::move(found));
    };
    while (read < length) {
      const size_t n = std::min<uint64_t>(in_.size(), length - read);
      source.read(file, offset + read, std::span(in_).first(n));
      read += n;
      ZSTD_inBuffer input{in_.data(), n, 0};
      bool more = true;                      // the decoder may hold output back
      while (input.pos < input.size || more) {
        ZSTD_outBuffer output{out_.data(), out_.size(), 0};
        wanted = ZSTD_decompressStream(stream_.get(), &output, &input);
        if (ZSTD_isError(wanted)) throw damaged(ZSTD_getErrorName(wanted));
        if (output.pos > limit - made) throw damaged(fmt::format("more than {} bytes", limit));
        spool.write(at + made, std::span(out_).first(output.pos));
        made += output.pos;
        more = output.pos == output.size;
      }
    }
    if (wanted != 0) throw damaged("it ends early");
    return made;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ZSTD_DStream, Free> stream_;
  std::vector<std::byte> in_, out_;
};

FileHandle new_spool() { return FileHandle::temporary(temporary_directory()); }

// What an item of this piece may be when decoded: its data, framing, and a storage larger than the tensor.
uint64_t most_decoded(const Piece& piece) { return 2 * count(piece.box) * item_size(piece.stored) + (1 << 20); }

// ---- plain items

// A stretch of a file in memory.
class Window {
 public:
  Window(const Source& source, SourceIndex file) : source_(source), file_(file) {}

  // Bytes of [begin, end), reading on up to `ahead(begin, end)` if they are not at hand.
  template <class Ahead>
  Bytes get(uint64_t begin, uint64_t end, Ahead ahead) {
    if (begin < begin_ || end > begin_ + bytes_.size()) {
      bytes_.resize(std::max(end, ahead(begin, end)) - begin);
      source_.read(file_, begin, bytes_);
      begin_ = begin;
    }
    return Bytes(bytes_).subspan(begin - begin_, end - begin);
  }

 private:
  const Source& source_;
  SourceIndex file_;
  uint64_t begin_ = 0;
  std::vector<std::byte> bytes_;
};

uint64_t end_of(const Piece& p) { return p.offset + p.length; }

// Where a read that must reach `end` should stop so that the following items find their ends in it.
uint64_t read_ahead(std::span<Piece* const> following, uint64_t begin, uint64_t end) {
  for (const Piece* next : following) {
    if (next->offset > end + kGap || next->offset < begin) break;
    const uint64_t stop = next->length <= kWhole ? end_of(*next) : next->offset + kItemHead;
    if (stop - begin > kWindow) break;
    end = std::max(end, stop);
    if (next->length > kWhole) break;
  }
  return end;
}

void take_over(const TensorItem& item, uint64_t item_offset, const Checkpoint& checkpoint, std::mutex& arena_mutex, Piece& piece) {
  piece.offset = item_offset + item.data_offset;
  piece.length = item.data_length;
  piece.swap = item.swap;
  piece.conj = item.conj;
  piece.neg = item.neg;
  piece.has_crc32 = item.has_crc32;
  piece.crc32 = item.crc32;
  if (!item.strides.empty()) {
    const std::lock_guard lock(arena_mutex);
    piece.strides = checkpoint.arena->store(Dims(item.strides));
  }
  piece.encoding = Encoding::raw;
}

// False: what the item holds is not what the metadata says, which was reported.
bool agrees(const TensorItem& item, const Checkpoint& checkpoint, const Piece& piece, FindingSink& sink) {
  const bool dtype = item.dtype == piece.stored, shape = equal(Dims(item.shape), piece.box.size);
  if (dtype && shape) return true;
  Finding f = error(Exit::damaged, dtype ? "shape of item differs from the metadata" : "dtype of item differs from the metadata");
  f.at(checkpoint.source->file(piece.source).name).key(std::string(checkpoint.tensors[piece.tensor].key)).range(piece.offset, end_of(piece));
  f.saw(fmt::format("{} {}", dtype_name(piece.stored), dims_text(piece.box.size)), fmt::format("{} {}", dtype_name(item.dtype), dims_text(item.shape)));
  f.where.rank = piece.rank;
  sink.report(std::move(f));
  return false;
}

// Runs `body` for one piece; damage is reported with its tensor, and ends nothing.
template <class Body>
void guarded(const Checkpoint& checkpoint, const Piece& piece, FindingSink& sink, Body&& body) {
  try {
    body();
  } catch (Error& e) {
    if (e.code() != Exit::damaged && e.code() != Exit::unsupported) throw;
    Finding f = e.in_file(checkpoint.source->file(piece.source).name).in_tensor(checkpoint.tensors[piece.tensor].key).finding();
    f.where.rank = piece.rank;
    sink.report(std::move(f));
  }
}

}  // namespace

std::pair<SourceIndex, uint64_t> spool_zstd(Source& source, SourceIndex file, uint64_t offset, uint64_t length, uint64_t limit) {
  FileHandle spool = new_spool();
  const uint64_t made = Decoder().decode(source, file, offset, length, limit, spool, 0);
  return {source.add_spool(std::move(spool), source.file(file).name), made};
}

void DcpItems::ready() { std::sort(compressed_.begin(), compressed_.end()); }

bool DcpItems::is_compressed(const Piece& piece) const {
  return !compressed_.empty() && std::binary_search(compressed_.begin(), compressed_.end(), std::pair(piece.source, piece.offset));
}

void DcpItems::resolve(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const {
  std::vector<Piece*> plain, compressed;
  for (Piece* piece : pieces) (is_compressed(*piece) ? compressed : plain).push_back(piece);
  resolve_plain(checkpoint, plain, sink);
  if (!compressed.empty()) resolve_compressed(checkpoint, compressed, sink);
}

void DcpItems::resolve_plain(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const {
  if (pieces.empty()) return;
  const Source& source = *checkpoint.source;
  const SourceIndex file = pieces[0]->source;
  const std::string& name = source.file(file).name;
  Window window(source, file);
  std::vector<std::byte> head_copy;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Piece& piece = *pieces[i];
    const uint64_t begin = piece.offset, end = end_of(piece);
    const auto reading_on = [following = pieces.subspan(i + 1)](uint64_t from, uint64_t to) { return read_ahead(following, from, to); };
    const auto no_more = [](uint64_t, uint64_t to) { return to; };
    guarded(checkpoint, piece, sink, [&] {
      Bytes head, tail;
      if (piece.length <= kWhole) {
        head = tail = window.get(begin, end, reading_on);
      } else {
        const Bytes at_hand = window.get(begin, begin + kItemHead, no_more);
        head_copy.assign(at_hand.begin(), at_hand.end());
        head = head_copy;
        tail = window.get(end - kItemTail, end, reading_on);
      }
      const ZipRead read = [&](uint64_t at, std::span<std::byte> out) { source.read(file, begin + at, out); };
      const TensorItem item = read_tensor_item(head, tail, piece.length, read, name, begin);
      if (agrees(item, checkpoint, piece, sink)) take_over(item, begin, checkpoint, arena_mutex_, piece);
    });
  }
}

// One spool file for all of them; Source wants it finished, so that pieces are taken over afterwards.
void DcpItems::resolve_compressed(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const {
  FileHandle spool = new_spool();
  Decoder decoder;
  struct Decoded {
    Piece* piece;
    uint64_t begin;
    TensorItem item;
  };
  std::vector<Decoded> all;
  uint64_t at = 0;
  for (Piece* piece : pieces) {
    guarded(checkpoint, *piece, sink, [&] {
      const uint64_t length = decoder.decode(*checkpoint.source, piece->source, piece->offset, piece->length, most_decoded(*piece), spool, at);
      const ZipRead read = [&](uint64_t offset, std::span<std::byte> out) { spool.read(at + offset, out); };
      TensorItem item = read_tensor_item({}, {}, length, read, checkpoint.source->file(piece->source).name, 0);
      if (!agrees(item, checkpoint, *piece, sink)) return;
      all.push_back({piece, at, std::move(item)});
      at = (at + length + kAlignment - 1) / kAlignment * kAlignment;
    });
  }
  if (all.empty()) return;
  spool.resize(at);
  const SourceIndex spool_index = checkpoint.source->add_spool(std::move(spool), checkpoint.source->file(pieces[0]->source).name);
  for (const Decoded& d : all) {
    take_over(d.item, d.begin, checkpoint, arena_mutex_, *d.piece);
    d.piece->source = spool_index;
  }
}

}  // namespace fsdpctl
