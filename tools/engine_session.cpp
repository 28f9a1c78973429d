#include "tools/engine_session.h"

namespace fsdpctl {

EngineSession::EngineSession(Printer& printer, std::string label) : progress_(printer, std::move(label)) {
  options_.threads = printer.globals().threads;
  options_.max_memory = printer.globals().max_memory;
  options_.cancel = &CancelScope::flag();
  options_.progress = progress_.callback();
}

}  // namespace fsdpctl
