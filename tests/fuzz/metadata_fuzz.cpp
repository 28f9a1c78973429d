// Any bytes as `.metadata`: read or refused.
#include <cstdint>
#include <cstring>
#include <span>

#include "formats/dcp_metadata.h"

using namespace fsdpctl;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FindingSink sink(false);
  try {
    const DcpMetadata metadata = read_dcp_metadata(
        [&](uint64_t at, std::span<std::byte> out) { std::memcpy(out.data(), data + at, out.size()); }, size, ".metadata", sink);
    // Whatever it says must be there.
    uint64_t sum = 0;
    for (const DcpEntry& e : metadata.entries) {
      for (uint32_t c = e.first_chunk; c < e.first_chunk + e.chunk_count; ++c) {
        const Piece& chunk = metadata.chunks.at(c);
        for (size_t d = 0; d < e.shape.size(); ++d) sum += static_cast<uint64_t>(chunk.box.offset[d] ^ chunk.box.size[d]);
        if (chunk.source != kNoDcpFile) sum += metadata.names.at(chunk.source).size() + metadata.entries.at(chunk.tensor).fqn.size();
      }
      for (uint32_t i = 0; i < e.element_count; ++i) sum += metadata.elements.at(e.first_element + i).key().size();
      sum += e.fqn.size();
    }
    for (const DcpStorage& s : metadata.storage) {
      sum += metadata.names.at(s.name).size() + metadata.names.at(s.file).size();
      for (uint32_t t = 0; t < s.transform_count; ++t) sum += metadata.names.at(metadata.transforms.at(s.first_transform + t)).size();
      for (size_t d = 0; d < s.box_dims; ++d) sum += static_cast<uint64_t>(s.box_offset[d]);
      if (s.entry != kNoDcpEntry) sum += metadata.entries.at(s.entry).fqn.size();
    }
    volatile uint64_t keep = sum;
    (void)keep;
  } catch (const Error&) {
  }
  return 0;
}
