// A transport that fails on purpose, for tests of everything that talks to other ranks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "lib/comm/transport.h"

namespace fsdpctl {

// What happens to the message that this rank sends as its `at`-th, counted from 0. Headers are messages, too, so that
// each step of a collective can be hit.
struct Fault {
  enum Kind : uint8_t {
    delay,   // it, and all that this rank does, waits for `time` before
    drop,    // it is never sent, and nobody says so
    die,     // `death` is called instead
  } kind = die;
  uint64_t at = 0;
  Milliseconds time{0};
  std::function<void()> death;   // does not return, or throws; the connections are closed if it throws
};

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> transport, Fault fault);

// "RANK:MESSAGE:kill", ":stop" (a rank that hangs), ":drop" or ":delay=MS", as the variable FSDPCTL_COMM_FAULT gives it
// to processes; nullopt for other ranks. Error(usage) where it is none of these.
std::optional<Fault> parse_fault(std::string_view text, int rank);

}  // namespace fsdpctl
