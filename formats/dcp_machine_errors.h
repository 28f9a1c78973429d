// Errors of the pickle machine of `.metadata`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/finding.h"

namespace fsdpctl {

inline constexpr uint64_t kMaxPickleString = uint64_t{1} << 20;

inline Error damaged_pickle(const char* what, std::string found = {}) { return Error(Exit::damaged, what).found_only(std::move(found)); }
inline Error unsupported_pickle(const char* what, std::string found = {}) {
  return Error(Exit::unsupported, what).found_only(std::move(found));
}

}  // namespace fsdpctl
