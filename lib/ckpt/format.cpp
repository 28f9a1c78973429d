#include "lib/ckpt/format.h"

namespace fsdpctl {

void Format::can_carry(const Checkpoint&, const Target&, FindingSink&) const {}

FilePlan Format::lay_out(const Checkpoint&, const Target&) const {
  throw Error(Exit::unsupported, "format can only be read").found_only(std::string(name()));
}

const Format* find_format(const FormatList& formats, std::string_view name) {
  for (const auto& format : formats) {
    if (format->name() == name) return format.get();
  }
  return nullptr;
}

}  // namespace fsdpctl
