// The legacy stream: magic, protocol, sys_info, object and storage keys as pickles one after the other, then for each
// key an element count and the data.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "formats/codec/little_endian.h"
#include "formats/codec/pickle_reader.h"
#include "formats/codec/pickle_scan.h"
#include "formats/codec/torch_object.h"
#include "formats/torch_file.h"

namespace fsdpctl {
namespace {

constexpr std::string_view kMagic = "119547037146038801333356";   // 0x1950A86A20F9469CFC6C
constexpr int64_t kProtocol = 1001;
constexpr uint64_t kMaxPickle = 1ull << 30;

class LegacyReader {
 public:
  LegacyReader(Checkpoint& checkpoint, SourceIndex source, FindingSink& sink)
      : checkpoint_(checkpoint), source_(source), sink_(sink), name_(checkpoint.source->file(source).name),
        size_(checkpoint.source->file(source).size) {}

  Value read(int rank) {
    check_head();
    TorchObjectHandler handler(checkpoint_, rank, name_, sink_);
    const Value tree = next_pickle(handler);
    const Value keys = next_pickle(plain_);
    handler.place(find_storages(handler.storages(), keys));
    if (at_ != size_) {
      sink_.report(warning("legacy stream is followed by bytes that belong to nothing").at(name_).range(at_, size_));
    }
    return tree;
  }

 private:
  void check_head() {
    const Value magic = next_pickle(plain_);
    if (!magic.is(Kind::big_integer) || magic.text() != kMagic) {
      throw Error(Exit::damaged, "legacy stream has a wrong magic number").at(name_).range(0, at_)
          .saw(std::string(kMagic), magic.is(Kind::big_integer) ? std::string(magic.text()) : "another value");
    }
    const Value protocol = next_pickle(plain_);
    if (!protocol.is(Kind::integer) || protocol.as_integer() != kProtocol) {
      throw Error(Exit::unsupported, "legacy stream has an unknown protocol version").at(name_)
          .saw(fmt::format("{}", kProtocol), protocol.is(Kind::integer) ? fmt::format("{}", protocol.as_integer()) : "another value");
    }
    if (!next_pickle(plain_).is_mapping()) throw Error(Exit::damaged, "legacy stream has no sys_info").at(name_);
  }

  Value next_pickle(PickleHandler& handler) {
    load_pickle();
    PickleResult result = read_pickle(std::span(buffer_).subspan(at_ - buffer_begin_), handler, name_, at_, sink_);
    at_ += result.consumed;
    return std::move(result.value);
  }

  // Makes buffer_ hold the pickle at at_ to its end, which only the pickle itself tells. A short buffer is doubled.
  void load_pickle() {
    for (uint64_t wanted = 64 << 10;; wanted *= 4) {
      const uint64_t size = std::min(wanted, size_ - at_);
      const uint64_t buffer_end = buffer_begin_ + buffer_.size();
      if (buffer_end - at_ < size || at_ < buffer_begin_) {
        buffer_.resize(size);
        buffer_begin_ = at_;
        checkpoint_.source->read(source_, at_, buffer_);
      }
      try {
        scan_pickle(std::span(buffer_).subspan(at_ - buffer_begin_), name_, at_);
        return;
      } catch (const Error& e) {
        const bool may_go_on = e.finding().what == kPickleCutShort && size < size_ - at_;
        if (!may_go_on) throw;
        if (wanted >= kMaxPickle) {
          throw Error(Exit::unsupported, "pickle is too big to be read into memory").at(name_).range(at_, size_)
              .saw(fmt::format("at most {} bytes", kMaxPickle), "more");
        }
      }
    }
  }

  std::vector<StoragePlace> find_storages(const std::vector<TorchStorage>& storages, const Value& keys) {
    if (!keys.is(Kind::list)) throw Error(Exit::damaged, "legacy stream has no list of storages").at(name_);
    std::unordered_map<std::string_view, size_t> by_key;
    for (size_t i = 0; i < storages.size(); ++i) by_key.emplace(storages[i].key, i);
    std::vector<StoragePlace> places(storages.size());
    std::vector<bool> found(storages.size());
    for (const Value& key : keys.items()) {
      const auto known = key.is(Kind::string) ? by_key.find(key.text()) : by_key.end();
      if (known == by_key.end() || found[known->second]) {
        throw Error(Exit::damaged, "legacy stream lists a storage that its object does not have").at(name_)
            .found_only(key_text(key));
      }
      found[known->second] = true;
      places[known->second] = next_storage(storages[known->second]);
    }
    const auto missing = std::find(found.begin(), found.end(), false);
    if (missing != found.end()) {
      throw Error(Exit::damaged, "storage is missing from the legacy stream").at(name_)
          .found_only("no " + std::string(storages[static_cast<size_t>(missing - found.begin())].key));
    }
    return places;
  }

  StoragePlace next_storage(const TorchStorage& storage) {
    const auto cut = [&] {
      return Error(Exit::damaged, "legacy stream is cut short").at(name_).range(at_, size_)
          .saw(fmt::format("storage {} of {} bytes", storage.key, storage.bytes), fmt::format("{} bytes", size_ - at_));
    };
    if (size_ - at_ < 8) throw cut();
    std::byte count[8];
    checkpoint_.source->read(source_, at_, count);
    if (get_u64(count) != storage.bytes / item_size(storage.dtype)) {
      throw Error(Exit::damaged, "storage has another size than the pickle says").at(name_).range(at_, at_ + 8)
          .saw(fmt::format("{} elements", storage.bytes / item_size(storage.dtype)), fmt::format("{}", get_u64(count)));
    }
    if (storage.bytes > size_ - at_ - 8) throw cut();
    StoragePlace place;
    place.source = source_;
    place.offset = at_ + 8;
    at_ += 8 + storage.bytes;
    return place;
  }

  Checkpoint& checkpoint_;
  SourceIndex source_;
  FindingSink& sink_;
  const std::string& name_;
  const uint64_t size_;
  uint64_t at_ = 0;
  std::vector<std::byte> buffer_;
  uint64_t buffer_begin_ = 0;
  PickleHandler plain_;
};

}  // namespace

Value read_torch_legacy(Checkpoint& checkpoint, SourceIndex source, int rank, FindingSink& sink) {
  return LegacyReader(checkpoint, source, sink).read(rank);
}

}  // namespace fsdpctl
