// See gloo/context.h.
#pragma once

namespace gloo::transport {
class Device;
class UnboundBuffer {
 public:
  ~UnboundBuffer();
};
}  // namespace gloo::transport
