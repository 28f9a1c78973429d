// A TCP connection whose every step has a deadline. Frames: eight bytes of length, then the bytes. Private to lib/comm.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lib/comm/store.h"

namespace fsdpctl {

inline constexpr uint64_t kMostFrame = 64 << 20;   // a longer one is no message of ours

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  // Tries again until the deadline while nobody listens there. Error(failed) with the address.
  static Socket connect(const std::string& address, uint16_t port, Deadline deadline);
  // Non-blocking. Port 0 takes a free one. A local address is only reachable from this machine, any other means all.
  static Socket listen(const std::string& address, uint16_t port);

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  uint16_t port() const;          // our own end's
  std::string address() const;    // our own end's, in numbers

  // False where the other end closed or the deadline passed; the connection is then of no use.
  bool send_frame(std::string_view bytes, Deadline deadline);
  std::optional<std::string> receive_frame(Deadline deadline);

  void notice_dead_machines();   // keep-alive probes: a machine without power is noticed in half a minute
  void close();

 private:
  bool ready(short events, Deadline deadline) const;
  bool receive(char* data, uint64_t size, Deadline deadline);
  int fd_ = -1;
};

bool is_local_address(const std::string& address);

}  // namespace fsdpctl
