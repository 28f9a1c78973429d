// LibTorch's headers include headers of Gloo that LibTorch does not bring along. These declare what those need to be
// compiled, and nothing of Gloo's layout: only pointers to it cross lib/comm/gloo.cpp.
#pragma once

#include <chrono>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
}  // namespace gloo
