// Items that share bytes: tied tensors, and damage.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "formats/dcp_catalog.h"

namespace fsdpctl {

// Can one file have two names ("a" and "./a")?
bool DcpCatalog::files_share_names() const {
  std::unordered_set<SourceIndex> sources;
  for (const auto& named : files_) {
    if (named.second.state == FileState::usable && !sources.insert(named.second.source).second) return true;
  }
  return false;
}

bool DcpCatalog::is_empty_chunk(uint32_t item) const { return item < metadata_.chunks.size() && is_empty(metadata_.chunks[item].box); }

// Tied parameters may be saved once and named twice; nothing else may share bytes.
void DcpCatalog::check_overlaps() {
  const auto chunks = static_cast<uint32_t>(metadata_.chunks.size());
  std::vector<uint32_t> order;
  order.reserve(usable_.size());
  for (uint32_t i = 0; i < usable_.size(); ++i) {
    if (!usable_[i]) continue;
    if (i < chunks || metadata_.storage[i - chunks].entry != kNoDcpEntry) order.push_back(i);
  }
  const auto placed = [&](uint32_t i) {      // with the file's number in the source, as chunks have it already
    Item here = item(i);
    if (i >= chunks) here.file = files_.at(here.file).source;
    return here;
  };
  const auto before = [&](uint32_t a, uint32_t b) {
    const Item x = placed(a), y = placed(b);
    if (x.file != y.file) return x.file < y.file;
    return x.offset != y.offset ? x.offset < y.offset : x.length < y.length;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::stable_sort(order.begin(), order.end(), before);
  uint32_t reaching = kNone;                 // of those before, the one that reaches farthest
  Item farthest;
  for (uint32_t i : order) {
    const Item here = placed(i);
    const bool same_file = reaching != kNone && farthest.file == here.file;
    if (same_file && farthest.end() > here.offset) {
      if (farthest.offset == here.offset && farthest.length == here.length) {
        note_same_bytes(reaching, i);
      } else {
        sink_.report(damage("two items overlap in their file", fqn_of(here))
                         .saw("bytes of its own", fmt::format("[{}, {}) of {}, also claimed by {}", here.offset, here.end(),
                                                              checkpoint_.source->file(here.file).name, fqn_of(farthest))));
      }
    }
    if (same_file && here.end() <= farthest.end()) continue;
    reaching = i;
    farthest = here;
  }
}

void DcpCatalog::note_same_bytes(uint32_t a, uint32_t b) {
  const uint32_t x = std::min(item(a).entry, item(b).entry), y = std::max(item(a).entry, item(b).entry);
  if (x != y && !metadata_.entries[x].is_bytes && !metadata_.entries[y].is_bytes) {
    if (same_as_.contains(y)) return;        // asked before
    if (!same_tensor(metadata_.entries[x], metadata_.entries[y])) {
      sink_.report(damage("two tensors share some of their bytes", metadata_.entries[y].fqn)
                       .saw("bytes of its own", fmt::format("bytes of {}", metadata_.entries[x].fqn)));
    }
    const auto first = same_as_.find(x);
    same_as_.emplace(y, first == same_as_.end() ? x : first->second);
    return;
  }
  if (x == y && (is_empty_chunk(a) || is_empty_chunk(b))) return;
  usable_[b] = usable_[b] && !metadata_.entries[item(b).entry].is_bytes;   // else one item could be read as many values
  sink_.report(damage("two items overlap in their file", metadata_.entries[y].fqn)
                   .saw("bytes of its own", fmt::format("bytes of {}", metadata_.entries[x].fqn)));
}

// The same bytes, that is.
bool DcpCatalog::same_tensor(const DcpEntry& a, const DcpEntry& b) const {
  if (a.dtype != b.dtype || !equal(a.shape, b.shape) || a.chunk_count != b.chunk_count) return false;
  for (uint32_t i = 0; i < a.chunk_count; ++i) {
    const Piece &x = metadata_.chunks[a.first_chunk + i], &y = metadata_.chunks[b.first_chunk + i];
    if (!equal(x.box.offset, y.box.offset) || !equal(x.box.size, y.box.size)) return false;
    if (x.source == kNoDcpFile || x.source != y.source || x.offset != y.offset || x.length != y.length) return false;
  }
  return true;
}

}  // namespace fsdpctl
