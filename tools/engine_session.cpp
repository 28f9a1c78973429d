#include "tools/engine_session.h"

#include <fmt/format.h>

#include "tools/size_text.h"

namespace fsdpctl {

EngineSession::EngineSession(Printer& printer, std::string label) : progress_(printer, std::move(label)) {
  options_.threads = printer.globals().threads;
  options_.max_memory = printer.globals().max_memory;
  options_.cancel = &CancelScope::flag();
  options_.progress = progress_.callback();
  const int threads = options_.threads;
  printer.detail(
      2, fmt::format("{}: {}, {} of buffers", progress_.label(),
                     threads > 0 ? count_text(static_cast<uint64_t>(threads), "thread") : "threads by the machine",
                     size_text(options_.max_memory)));
}

}  // namespace fsdpctl
