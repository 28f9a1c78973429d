#include "lib/ckpt/late_writer.h"

#include "lib/ckpt/block_filler.h"

namespace fsdpctl {
namespace {

constexpr size_t kWrite = 1 << 20;

}  // namespace

uint64_t write_late_segments(const FileLayout& layout, const FileCrcs& crcs, OutputFile& file, bool all_late) {
  SegmentList list;
  std::string text;          // rendered, not yet written
  uint64_t begin = 0;        // of the text in the file
  uint64_t written = 0;
  const auto flush = [&] {
    file.write_buffered(begin, std::as_bytes(std::span(text)));
    written += text.size();
    text.clear();
  };
  for (uint64_t item = 0; item < layout.item_count(); ++item) {
    segments_of(layout, item, list);
    const Segment* tensor = tensor_segment(list);
    for (const Segment& segment : list.segments) {
      if (segment.kind != Segment::Kind::rendered_late || (!all_late && is_early(segment, tensor))) continue;
      if (!text.empty() && (begin + text.size() != segment.offset || text.size() >= kWrite)) flush();
      if (text.empty()) begin = segment.offset;
      render_segment(layout, item, segment, &crcs, text);
    }
  }
  if (!text.empty()) flush();
  return written;
}

}  // namespace fsdpctl
