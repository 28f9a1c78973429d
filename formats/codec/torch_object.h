// What the calls in a torch.save pickle mean: storages, tensors, parameters. Used with read_pickle.
//
// Tensors become rows and pieces of a Checkpoint while the pickle is read. Where their storages lie is not known then
// (the legacy stream stores them after the pickle): pieces get offsets relative to their storage, and the container
// places the storages afterwards. Identical views of one storage are one tensor; other views are tensors of their own
// with pieces in the same bytes. Quantised, sparse, meta and subclass tensors stay inert objects; storages that those
// hold become rows of Role::storage. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/codec/pickle_reader.h"
#include "formats/codec/torch_storage_class.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// One storage that the pickle names.
struct TorchStorage {
  std::string_view key;         // "0"; opaque; in the checkpoint's arena
  std::string_view class_name;  // "torch.FloatStorage"; ditto
  DType dtype = DType::uint8;   // what its class names; uint8 for UntypedStorage
  uint64_t bytes = 0;           // as the pickle claims: the container compares
  uint32_t range = 0;           // private to the handler
};

// Where a storage's bytes are.
struct StoragePlace {
  SourceIndex source = 0;
  uint64_t offset = 0;
  Encoding encoding = Encoding::raw;
  bool swap = false;                   // big-endian
  bool has_crc32 = false;
  uint32_t crc32 = 0;                  // of the whole storage
};

class TorchObjectHandler : public PickleHandler {
 public:
  // `name` is the file for messages. All references must outlive the handler.
  TorchObjectHandler(Checkpoint& checkpoint, int rank, const std::string& name, FindingSink& sink);

  uint32_t know(std::string_view module, std::string_view name) override;
  Value persistent(const Value& id) override;
  bool call(const PickleCall& call, Value& result) override;

  const std::vector<TorchStorage>& storages() const { return storages_; }
  // Call once after read_pickle: completes the pieces, places[i] being where storage i is, and gives storages inside
  // inert objects their rows. CRCs that no piece covers exactly go to checkpoint.recorded_crcs. Pieces in encoded
  // storages are handed to `encoded` (piece, storage) with offset and length as they will be in the decoded storage.
  void place(const std::vector<StoragePlace>& places,
             const std::function<void(Piece& piece, size_t storage)>& encoded = nullptr);

 private:
  static constexpr uint32_t kFirstClass = 64;   // what know() answers for storage classes: this and their row

  // What a storage leaf stands for while the pickle is read: a storage or (legacy stream) a range of one.
  struct Range {
    uint32_t storage = 0;
    uint64_t begin = 0, bytes = 0;
    Value leaf;                        // shared by all uses; its index is this range's number
    TensorIndex first = kNoTensor;     // first tensor on it
  };
  struct StorageClassName {
    StorageClass type;
    std::string_view name;
  };
  struct View {                        // of a range; offset, size and stride in elements of dtype
    uint32_t range = 0;
    DType dtype = DType::uint8;
    uint64_t offset = 0;
    Dims size, stride;                 // stride empty: row-major
    uint64_t bytes = 0;                // from the first element to the last
    bool conj = false, neg = false;
  };

  uint32_t range_number(std::string_view key, const Value& class_value, const Value& numel);
  const TorchStorage* find_storage(std::string_view key) const;
  uint32_t part_of_range(uint32_t whole, const Value& view);
  Value leaf_of(uint32_t storage, uint64_t begin, uint64_t bytes);

  Value rebuild_tensor(const PickleCall& call);
  bool rebuild_parameter(const PickleCall& call, Value& result);
  bool rebuild_from_type(const PickleCall& call, Value& result);
  void read_metadata(const Value& metadata, View& view);
  void check_view(View& view);
  TensorIndex add_view(const View& view);
  bool same_view(TensorIndex tensor, const View& view) const;
  uint64_t view_hash(const View& view) const;
  static std::string global_name(const Value& v);
  Error wrong(std::string what, std::string_view function) const;
  void warn_once(std::string what, std::string found);

  Checkpoint& checkpoint_;
  const int rank_;
  const std::string& name_;
  FindingSink& sink_;
  std::vector<StorageClassName> classes_;                           // of storages
  std::vector<TorchStorage> storages_;
  std::vector<Range> ranges_;
  std::unordered_map<std::string_view, uint32_t> by_key_;           // storages whose key is not their number
  std::unordered_map<std::string_view, uint32_t> views_by_key_;     // legacy views
  std::unordered_multimap<uint64_t, TensorIndex> later_views_;      // of ranges with more than one tensor, by view_hash
  const TensorIndex first_tensor_;
  const PieceIndex first_piece_;                                    // one per tensor
  std::vector<uint32_t> piece_range_;
  std::vector<int64_t> size_, stride_;                              // scratch
  Dims zeros_;
  std::set<std::string> warned_;
};

}  // namespace fsdpctl
