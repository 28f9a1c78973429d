// SIGINT and SIGTERM. While a CancelScope lives the first one sets its flag, so that the engine can stop and clean up;
// a second one, or one outside a scope (nothing is being written then), ends the process at once with 130 or 143.
#pragma once

#include <atomic>

#include "lib/base/finding.h"

namespace fsdpctl {

// Also ignores SIGPIPE: writes to a closed pipe fail instead.
void install_signal_handlers();

class CancelScope {
 public:
  CancelScope();
  ~CancelScope();
  CancelScope(const CancelScope&) = delete;
  static const std::atomic<bool>& flag();
  static const std::atomic<int>& signal();  // its number; 0 before
};

// 130 or 143, by the signal that set the flag.
Exit interruption_code();

}  // namespace fsdpctl
