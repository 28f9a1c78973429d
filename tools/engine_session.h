// What an engine run needs from the program: the globals' limits, a progress line, and Ctrl-C. Lives as long as the
// run.
#pragma once

#include <string>

#include "lib/ckpt/engine.h"
#include "tools/printer.h"
#include "tools/signals.h"

namespace fsdpctl {

class EngineSession {
 public:
  EngineSession(Printer& printer, std::string label);
  EngineSession(const EngineSession&) = delete;
  const EngineOptions& options() const { return options_; }

 private:
  CancelScope scope_;
  Progress progress_;
  EngineOptions options_;
};

}  // namespace fsdpctl
