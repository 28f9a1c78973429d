#include "tools/open_input.h"

#include <fmt/format.h>

#include "tools/size_text.h"

namespace fsdpctl {

Opened open_input(const Context& context, const std::string& path, FindingSink& sink, bool follow_links) {
  Opened opened = open_checkpoint(context.formats, path, sink, {follow_links});
  const Checkpoint& checkpoint = opened.checkpoint;
  if (!opened.chosen.empty()) {
    context.printer.remark(note("newest complete step taken").at(path).found_only(opened.chosen));
  }
  context.printer.detail(
      1, fmt::format("{}: {}, {}; {} in {}, {}", path, opened.format->name(), opened.match.reason,
                     count_text(checkpoint.tensors.size(), "tensor"), count_text(checkpoint.pieces.size(), "piece"),
                     count_text(checkpoint.data_files.size(), "file")));
  return opened;
}

}  // namespace fsdpctl
