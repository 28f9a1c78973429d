// Storages of re-zipped torch archives: inflated on first use into unnamed temporary files.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/codec/zip.h"
#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

// Filled while a checkpoint is opened, then const and thread-safe.
class DeflatedStorages : public ItemResolver {
 public:
  // A member of the archive at `base` of a source file. Returns its number.
  uint32_t add_storage(SourceIndex source, uint64_t base, const ZipMember& member);
  // Turns `piece`, whose offset and length are those in the inflated storage, into an item. Ascending tensors.
  void add_piece(Piece& piece, uint32_t storage);

  void resolve(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const override;

 private:
  struct Storage {
    SourceIndex source = 0;
    uint64_t base = 0;
    ZipMember member;
  };
  struct View {
    TensorIndex tensor = kNoTensor;
    uint32_t storage = 0;
    uint64_t offset = 0, length = 0;
  };
  const View& view_of(const Piece& piece) const;

  std::vector<Storage> storages_;
  std::vector<View> views_;   // by tensor
};

}  // namespace fsdpctl
