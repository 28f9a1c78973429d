#include "lib/base/variables.h"

#include <cstdlib>

namespace fsdpctl {

std::optional<std::string> process_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace fsdpctl
