#include "lib/ckpt/tensor_totals.h"

#include <array>

#include "lib/base/checksum.h"
#include "lib/ckpt/strided_copy.h"

namespace fsdpctl {

void TensorTotals::add(const TensorPart& part) {
  Row& row = rows_[part.tensor];
  row.bytes += part.bytes;
  row.source_crc64 ^= part.source_crc64;
  row.crc64 ^= part.crc64;
  if (part.casts == CastCounts{}) return;
  row.changed += part.casts.changed;
  row.overflowed += part.casts.overflowed;
  row.flushed += part.casts.flushed;
}

std::vector<TensorSum> TensorTotals::sums() const {
  std::vector<TensorSum> result(rows_.size());
  for (TensorIndex t = 0; t < rows_.size(); ++t) {
    const TensorInfo& info = checkpoint_.tensors[t];
    const std::span<const Piece> pieces = checkpoint_.pieces_of(t);
    const uint64_t n = count(info.shape), bytes = n * item_size(info.dtype);
    const Row& row = rows_[t];
    if (row.bytes != bytes) continue;
    const DType stored = pieces.empty() ? info.dtype : pieces.front().stored;
    result[t] = {crc64_finish(row.source_crc64, n * item_size(stored)), crc64_finish(row.crc64, bytes),
                 {row.changed, row.overflowed, row.flushed}};
  }
  return result;
}

Box whole_region(const TensorInfo& info) {
  static constexpr std::array<int64_t, kMaxAxes> kZeros{};
  if (info.shape.size() > kMaxAxes) {
    throw Error(Exit::unsupported, "tensor has too many dimensions").key(std::string(info.key));
  }
  return {Dims(kZeros).first(info.shape.size()), info.shape};
}

}  // namespace fsdpctl
