// What every system call of lib/base/file.h goes through: fault injection, EINTR, errors. Private to lib/base.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>

#include "lib/base/file.h"

struct stat;

namespace fsdpctl {

// 0, or the errno that `operation` shall fail with instead of touching the disk (see set_fault_hook).
int injected_fault(std::string_view operation, const std::string& path);

// Error(failed): `what`, the path and the system's words for `code`. No space has a `what` of its own.
[[noreturn]] void throw_system(std::string_view what, const std::string& path, int code);

FileStat describe(const struct ::stat& info);

// Calls `call` until it is not interrupted by a signal. -1 with errno set where it failed or was made to.
template <class Call>
auto system_call(std::string_view operation, const std::string& path, Call call) -> decltype(call()) {
  if (const int fault = injected_fault(operation, path)) {
    errno = fault;
    return -1;
  }
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

}  // namespace fsdpctl
