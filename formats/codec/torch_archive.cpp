#include "formats/codec/little_endian.h"
#include "formats/codec/torch_archive.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/codec/deflated_storages.h"
#include "formats/codec/torch_archive_reader.h"
#include "formats/codec/torch_object.h"

namespace fsdpctl {
namespace {

constexpr uint64_t kMaxPickle = 2ull << 30;
constexpr uint64_t kMaxSmallMember = 64;
constexpr size_t kMany = 1000;       // members
constexpr int kNewestVersion = 10;   // that PyTorch's reader accepts

std::string small_member(const TorchArchiveSlice& slice, const ZipMember& member) {
  std::string text = read_zip_member(slice.read, member, kMaxSmallMember, slice.name, slice.base);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool is_big_endian(const TorchArchiveSlice& slice, const ZipArchive& archive) {
  const ZipMember* member = archive.find("byteorder");
  if (!member) return false;   // releases before 2.1
  const std::string order = small_member(slice, *member);
  if (order != "little" && order != "big") {
    throw Error(Exit::damaged, "archive has an unknown byte order").at(slice.name).saw("little or big", order);
  }
  return order == "big";
}

void check_kind(const TorchArchiveSlice& slice, const ZipArchive& archive, FindingSink& sink) {
  if (archive.find("constants.pkl")) {
    throw Error(Exit::unsupported, "TorchScript archives are programs, not checkpoints").at(slice.name);
  }
  const ZipMember* version = archive.find(".data/version");
  if (!version) version = archive.find("version");
  if (!version) {
    sink.report(warning("archive has no version member; PyTorch itself does not read it").at(slice.name));
    return;
  }
  const std::string text = small_member(slice, *version);
  const bool digits = !text.empty() && text.size() <= 4 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) throw Error(Exit::damaged, "archive has no readable version").at(slice.name).found_only(text);
  if (std::stoi(text) > kNewestVersion) {
    throw Error(Exit::unsupported, "archive is of a newer version").at(slice.name)
        .saw(fmt::format("at most {}", kNewestVersion), text);
  }
}

std::string written_by(const ZipArchive& archive) {
  if (archive.find(".format_version")) return "torch 2.7 or newer";
  if (archive.find("byteorder")) return "torch 2.1 to 2.6";
  return "torch 2.0 or older";
}

void report_unused(const TorchArchiveSlice& slice, const ZipArchive& archive, const std::vector<bool>& used,
                   FindingSink& sink) {
  uint64_t count = 0, bytes = 0;
  std::string first;
  for (size_t i = 0; i < archive.members.size(); ++i) {
    const ZipMember& m = archive.members[i];
    const bool known = m.name == "data.pkl" || m.name == "version" || m.name == "byteorder" ||
                       m.name == ".format_version" || m.name == ".storage_alignment" || m.name.starts_with(".data/");
    if (used[i] || known) continue;
    if (count++ == 0) first = m.name;
    bytes += m.stored_size;
  }
  if (count == 0) return;
  sink.report(warning("archive has members that nothing refers to").at(slice.name)
                  .found_only(fmt::format("{}{}, {} bytes", first, count > 1 ? fmt::format(" and {} more", count - 1) : "", bytes)));
}

// The member of each storage, most often the one after that of the storage before.
class MemberFinder {
 public:
  explicit MemberFinder(const ZipArchive& archive) : archive_(archive) {}

  const ZipMember* find(std::string_view key) {
    const auto& members = archive_.members;
    const auto is_it = [&](const ZipMember& m) { return m.name.starts_with("data/") && m.name.substr(5) == key; };
    if (next_ >= members.size() || !is_it(members[next_])) {
      const ZipMember* found = archive_.find("data/" + std::string(key));
      if (!found) return nullptr;
      next_ = static_cast<size_t>(found - members.data());
    }
    return &members[next_++];
  }

 private:
  const ZipArchive& archive_;
  size_t next_ = 0;
};

std::vector<StoragePlace> find_storages(const TorchArchiveSlice& slice, const ZipArchive& archive,
                                        const std::vector<TorchStorage>& storages, bool big_endian,
                                        std::vector<bool>& used, std::vector<const ZipMember*>& members) {
  std::vector<StoragePlace> places;
  places.reserve(storages.size());
  members.reserve(storages.size());
  MemberFinder finder(archive);
  for (const TorchStorage& s : storages) {
    const ZipMember* member = finder.find(s.key);
    if (!member) {
      throw Error(Exit::damaged, "storage is missing from the archive").at(slice.name).found_only("no data/" + std::string(s.key));
    }
    if (member->size != s.bytes) {
      throw Error(Exit::damaged, "storage has another size than the pickle says").at(slice.name)
          .range(slice.base + member->data_offset, slice.base + member->data_offset + member->stored_size)
          .saw(fmt::format("{} bytes", s.bytes), fmt::format("{} in {}", member->size, member->name));
    }
    used[static_cast<size_t>(member - archive.members.data())] = true;
    members.push_back(member);
    StoragePlace place;
    place.source = slice.source;
    place.offset = slice.base + member->data_offset;
    place.encoding = member->method == kZipStored ? Encoding::raw : Encoding::item;
    place.swap = big_endian;
    place.has_crc32 = member->crc32 != 0;
    place.crc32 = member->crc32;
    places.push_back(place);
  }
  return places;
}

std::shared_ptr<DeflatedStorages> deflated_storages(Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.resolver) {
    auto mine = std::dynamic_pointer_cast<const DeflatedStorages>(checkpoint.resolver);
    if (!mine) throw Error(Exit::unsupported, "compressed storage inside a distributed checkpoint").at(name);
    return std::const_pointer_cast<DeflatedStorages>(mine);   // still being filled: nobody else has it
  }
  auto fresh = std::make_shared<DeflatedStorages>();
  checkpoint.resolver = fresh;
  return fresh;
}

}  // namespace

Value read_torch_archive(Checkpoint& checkpoint, const TorchArchiveSlice& slice, int rank, FindingSink& sink,
                         TorchArchiveFacts* facts) {
  const ZipArchive archive = read_zip(slice.read, slice.length, slice.name, slice.base);
  check_kind(slice, archive, sink);
  const ZipMember* pickle = archive.find("data.pkl");
  if (!pickle) throw Error(Exit::damaged, "archive has no data.pkl").at(slice.name);
  const bool big_endian = is_big_endian(slice, archive);

  if (archive.members.size() > kMany) {        // of a small archive among thousands it would do harm
    checkpoint.tensors.reserve(checkpoint.tensors.size() + archive.members.size());
    checkpoint.pieces.reserve(checkpoint.pieces.size() + archive.members.size());
  }
  TorchObjectHandler handler(checkpoint, rank, slice.name, sink);
  Value tree;
  {
    const std::string stream = read_zip_member(slice.read, *pickle, kMaxPickle, slice.name, slice.base);
    const uint64_t stream_offset = pickle->method == kZipStored ? slice.base + pickle->data_offset : 0;
    tree = read_pickle(byte_view(stream), handler, slice.name, stream_offset, sink, {.sharing = slice.sharing}).value;
  }

  std::vector<bool> used(archive.members.size());
  std::vector<const ZipMember*> members;
  const auto places = find_storages(slice, archive, handler.storages(), big_endian, used, members);
  const auto is_item = [](const StoragePlace& p) { return p.encoding == Encoding::item; };
  const uint64_t deflated = static_cast<uint64_t>(std::count_if(places.begin(), places.end(), is_item));
  std::shared_ptr<DeflatedStorages> inflater;
  std::vector<uint32_t> numbers(deflated > 0 ? places.size() : 0);
  if (deflated > 0) {
    inflater = deflated_storages(checkpoint, slice.name);
    for (size_t i = 0; i < places.size(); ++i) {
      if (is_item(places[i])) numbers[i] = inflater->add_storage(slice.source, slice.base, *members[i]);
    }
  }
  handler.place(places, [&](Piece& piece, size_t storage) { inflater->add_piece(piece, numbers[storage]); });
  report_unused(slice, archive, used, sink);
  if (facts) *facts = {archive.prefix, written_by(archive), places.size(), big_endian, deflated};
  return tree;
}

Value read_torch_archive(Checkpoint& checkpoint, SourceIndex source, uint64_t offset, uint64_t length, int rank,
                         FindingSink& sink, TorchArchiveFacts* facts) {
  const ZipRead read = [&checkpoint, source, offset](uint64_t at, std::span<std::byte> out) {
    checkpoint.source->read(source, offset + at, out);
  };
  return read_torch_archive(checkpoint, {read, length, checkpoint.source->file(source).name, offset, source}, rank, sink, facts);
}

}  // namespace fsdpctl
