// What client and server of the TCP store say to each other. Private to lib/comm.
//
// A connection begins with a greeting: kGreeting, run_id, rank, world size, 1 for the rank's principal connection.
// Then requests: a number (Request), a key, and what the request needs. Every frame is answered by one: a number
// (Answer), and bytes or a finding.
#pragma once

#include <cstdint>

namespace fsdpctl {

inline constexpr const char* kGreeting = "fsdpctl store 1";

enum class Request : uint64_t { set, set_once, add, get, erase, fail, failure, goodbye };
enum class Answer : uint64_t { done, nothing_in_time, failed, refused };

}  // namespace fsdpctl
