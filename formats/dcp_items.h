// Tensor items of .distcp files: each is a torch.save archive of one bare tensor, perhaps inside a zstd stream.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "lib/ckpt/checkpoint.h"

namespace fsdpctl {

inline constexpr std::string_view kDcpZstd = "stream.zstd/1";   // the one transform that is known

// Decodes one zstd stream of a source file into a spool file of the source. Error(damaged) for damage, or where more than
// `limit` bytes come out. Returns (spool, decoded length).
std::pair<SourceIndex, uint64_t> spool_zstd(Source& source, SourceIndex file, uint64_t offset, uint64_t length, uint64_t limit);

// Finds the bytes of plain items by their ends alone, read in big steps; zstd items are decoded into spool files.
// Fill it while opening; resolve() may then be called from several threads.
class DcpItems : public ItemResolver {
 public:
  void add_compressed(SourceIndex file, uint64_t offset) { compressed_.emplace_back(file, offset); }
  void ready();                              // after the last add_compressed()
  void resolve(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const override;

 private:
  bool is_compressed(const Piece& piece) const;
  void resolve_plain(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const;
  void resolve_compressed(const Checkpoint& checkpoint, std::span<Piece* const> pieces, FindingSink& sink) const;

  std::vector<std::pair<SourceIndex, uint64_t>> compressed_;
  mutable std::mutex arena_mutex_;           // guards checkpoint.arena for strides, which few items have
};

}  // namespace fsdpctl
