#include "tools/signals.h"

#include <unistd.h>
#include <csignal>

namespace fsdpctl {
namespace {

std::atomic<bool> cancelled = false;
std::atomic<int> scopes = 0;
std::atomic<int> last_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "the handler may only touch what is safe in a signal handler");

extern "C" void on_signal(int number) {
  last_signal = number;
  if (scopes == 0 || cancelled) _exit(128 + number);
  cancelled = true;
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

CancelScope::CancelScope() {
  ++scopes;
}
CancelScope::~CancelScope() {
  --scopes;
}
const std::atomic<bool>& CancelScope::flag() {
  return cancelled;
}

const std::atomic<int>& CancelScope::signal() {
  return last_signal;
}

Exit interruption_code() {
  return last_signal == SIGTERM ? Exit::terminated : Exit::interrupted;
}

}  // namespace fsdpctl
