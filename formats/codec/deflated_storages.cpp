#include "formats/codec/deflated_storages.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lib/base/file.h"
#include "lib/base/temporary.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kAlignment = 64;

// Inflates members one after the other into one temporary file.
class Spool {
 public:
  Spool() : file_(FileHandle::temporary(temporary_directory())) {}

  // Where it begins here; nullopt where the member is damaged, which is reported for the tensor `key`.
  std::optional<uint64_t> inflate_or_report(const Source& source, SourceIndex index, uint64_t base, const ZipMember& member,
                                            std::string_view key, FindingSink& sink) {
    try {
      return inflate(source, index, base, member);
    } catch (Error& e) {
      if (e.code() != Exit::damaged) throw;
      sink.report(e.in_tensor(key).finding());
      return std::nullopt;
    }
  }

  FileHandle finish() {
    file_.resize(end_);
    return std::move(file_);
  }

 private:
  uint64_t inflate(const Source& source, SourceIndex index, uint64_t base, const ZipMember& member) {
    const uint64_t begin = end_;
    const ZipRead read = [&](uint64_t offset, std::span<std::byte> out) { source.read(index, base + offset, out); };
    inflate_zip_member(read, member, source.file(index).name, base,
                       [&](uint64_t offset, Bytes block) { file_.write(begin + offset, block); });
    end_ = (begin + member.size + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }

  FileHandle file_;
  uint64_t end_ = 0;
};

}  // namespace

uint32_t DeflatedStorages::add_storage(SourceIndex source, uint64_t base, const ZipMember& member) {
  storages_.push_back({source, base, member});
  return static_cast<uint32_t>(storages_.size() - 1);
}

void DeflatedStorages::add_piece(Piece& piece, uint32_t storage) {
  const Storage& s = storages_[storage];
  views_.push_back({piece.tensor, storage, piece.offset, piece.length});
  piece.encoding = Encoding::item;
  piece.source = s.source;
  piece.offset = s.base + s.member.data_offset;
  piece.length = s.member.stored_size;
}

const DeflatedStorages::View& DeflatedStorages::view_of(const Piece& piece) const {
  return *std::lower_bound(views_.begin(), views_.end(), piece.tensor,
                           [](const View& v, TensorIndex t) { return v.tensor < t; });
}

void DeflatedStorages::resolve(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const {
  std::optional<Spool> spool;
  std::map<uint32_t, std::optional<uint64_t>> begins;   // of storages in the spool; nullopt: damaged
  for (const Piece* piece : pieces) {
    const uint32_t number = view_of(*piece).storage;
    if (begins.contains(number)) continue;
    if (!spool) spool.emplace();
    const Storage& s = storages_[number];
    begins[number] = spool->inflate_or_report(*checkpoint.source, s.source, s.base, s.member, checkpoint.tensors[piece->tensor].key, sink);
  }
  if (!spool) return;
  const SourceIndex source = checkpoint.source->add_spool(spool->finish(), "inflated storages");
  for (Piece* piece : pieces) {
    const View& view = view_of(*piece);
    const std::optional<uint64_t> begin = begins[view.storage];
    if (!begin) continue;
    const ZipMember& member = storages_[view.storage].member;
    piece->encoding = Encoding::raw;
    piece->source = source;
    piece->offset = *begin + view.offset;
    piece->length = view.length;
    piece->has_crc32 = member.crc32 != 0 && view.length == member.size;
    piece->crc32 = piece->has_crc32 ? member.crc32 : 0;
  }
}

}  // namespace fsdpctl
