#include "lib/ckpt/piece_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace fsdpctl {
namespace {

constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

// Bytes from the box's first element to the end of its last one; nullopt where the strides make no sense.
std::optional<uint64_t> needed_bytes(const Piece& piece) {
  const uint64_t elements = count(piece.box);
  const uint64_t item = item_size(piece.stored);
  if (elements == 0) return 0;
  uint64_t last = elements - 1;
  if (!piece.strides.empty()) {
    if (piece.strides.size() != piece.box.size.size()) return std::nullopt;
    last = 0;
    for (size_t d = 0; d < piece.strides.size(); ++d) {
      const auto steps = static_cast<uint64_t>(piece.box.size[d] - 1);
      if (piece.strides[d] < 0) return std::nullopt;
      const auto stride = static_cast<uint64_t>(piece.strides[d]);
      if (steps != 0 && stride > (kMaxBytes - last) / steps) return std::nullopt;
      last += steps * stride;
    }
  }
  if (last >= kMaxBytes / item) return std::nullopt;
  return (last + 1) * item;
}

class Check {
 public:
  Check(const Checkpoint& checkpoint, Piece& piece, FindingSink& sink)
      : checkpoint_(checkpoint), piece_(piece), sink_(sink) {}

  bool box() {
    const TensorInfo& tensor = checkpoint_.tensors[piece_.tensor];
    if (contains(tensor.shape, piece_.box)) return true;
    Finding f = error(Exit::damaged, "piece lies outside its tensor");
    f.saw("a box inside " + dims_text(tensor.shape),
          piece_.box.offset.size() == piece_.box.size.size() ? box_text(piece_.box) : "a box without sense");
    return report(std::move(f));
  }

  bool raw() {
    const std::optional<uint64_t> needed = needed_bytes(piece_);
    if (!needed) {
      return report(error(Exit::damaged, "strides of piece make no sense").found_only(dims_text(piece_.strides)));
    }
    if (piece_.length == 0) piece_.length = *needed;
    if (piece_.length < *needed) {
      return report(error(Exit::damaged, "storage is shorter than the view of it")
                        .saw(fmt::format("{} bytes", *needed), fmt::format("{}", piece_.length)));
    }
    const uint64_t elements = count(piece_.box);
    if (elements / kMaxViewRepeats > *needed / item_size(piece_.stored)) {
      return report(error(Exit::unsupported, "view repeats its storage too often")
                        .saw(fmt::format("at most {} times", kMaxViewRepeats),
                             fmt::format("{} elements of {} bytes", elements, *needed)));
    }
    return extent();
  }

  bool extent() {
    if (!checkpoint_.source || piece_.length == 0) return true;
    const uint64_t size = checkpoint_.source->file(piece_.source).size;
    if (piece_.offset <= size && piece_.length <= size - piece_.offset) return true;
    return report(error(Exit::damaged, "piece lies beyond the end of its file")
                      .range(piece_.offset, end())
                      .saw(fmt::format("at least {} bytes", end()), fmt::format("{}", size)));
  }

 private:
  uint64_t end() const {
    const uint64_t room = std::numeric_limits<uint64_t>::max() - piece_.offset;
    return piece_.offset + std::min(piece_.length, room);
  }

  bool report(Finding finding) {
    finding.key(std::string(checkpoint_.tensors[piece_.tensor].key));
    if (checkpoint_.source) finding.at(checkpoint_.source->file(piece_.source).name);
    finding.where.rank = piece_.rank;
    sink_.report(std::move(finding));
    return false;
  }

  const Checkpoint& checkpoint_;
  Piece& piece_;
  FindingSink& sink_;
};

}  // namespace

bool check_piece(const Checkpoint& checkpoint, Piece& piece, FindingSink& sink) {
  Check check(checkpoint, piece, sink);
  if (!check.box()) return false;
  return piece.encoding == Encoding::raw ? check.raw() : check.extent();
}

}  // namespace fsdpctl
