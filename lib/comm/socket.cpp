#include "lib/comm/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "lib/comm/wire.h"

namespace fsdpctl {
namespace {

constexpr Milliseconds kRetry{20};

[[noreturn]] void throw_socket(std::string what, const std::string& address, uint16_t port, std::string found) {
  throw Error(Exit::failed, std::move(what)).at(fmt::format("{}:{}", address, port)).found_only(std::move(found));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& address, uint16_t port, int flags) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(address.empty() ? nullptr : address.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (code != 0) throw_socket("address is unknown", address, port, gai_strerror(code));
  return {found, &freeaddrinfo};
}

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

// 0, or the errno of the attempt.
int try_connect(const addrinfo& address, Deadline deadline, Socket& result) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
  if (!socket) return errno;
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd waiting{socket.fd(), POLLOUT, 0};
    if (poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left_until(deadline).count(), 5'000))) != 1) return ETIMEDOUT;
    int code = 0;
    socklen_t size = sizeof code;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &code, &size);
    if (code != 0) return code;
  }
  set_option(socket.fd(), IPPROTO_TCP, TCP_NODELAY, 1);
  socket.notice_dead_machines();
  result = std::move(socket);
  return 0;
}

}  // namespace

Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}
Socket::~Socket() { close(); }

void Socket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool is_local_address(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

Socket Socket::connect(const std::string& address, uint16_t port, Deadline deadline) {
  for (;;) {
    int code = 0;
    const Addresses found = resolve(address, port, 0);
    for (const addrinfo* one = found.get(); one; one = one->ai_next) {
      Socket socket;
      code = try_connect(*one, deadline, socket);
      if (code == 0) return socket;
    }
    if (left_until(deadline) <= kRetry) throw_socket("no connection to the store", address, port, std::strerror(code));
    std::this_thread::sleep_for(kRetry);
  }
}

Socket Socket::listen(const std::string& address, uint16_t port) {
  const Addresses found = resolve(is_local_address(address) ? address : "", port, AI_PASSIVE);
  int code = EADDRNOTAVAIL;
  for (const addrinfo* one = found.get(); one; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol));
    if (!socket) continue;
    set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);   // of an earlier run's connections, not of its listener
    if (one->ai_family == AF_INET6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(socket.fd(), one->ai_addr, one->ai_addrlen) == 0 && ::listen(socket.fd(), 4096) == 0) return socket;
    code = errno;
  }
  if (code == EADDRINUSE) {
    throw Error(Exit::failed, "port is in use")
        .at(fmt::format("{}:{}", address, port))
        .found_only("another program, perhaps an earlier run, listens there")
        .try_("export MASTER_PORT=<another port>, the same on all ranks");
  }
  throw_socket("cannot listen for the other ranks", address, port, std::strerror(code));
}

uint16_t Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string Socket::address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
  char text[NI_MAXHOST] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

void Socket::notice_dead_machines() {
  set_option(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd_, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd_, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_option(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

bool Socket::ready(short events, Deadline deadline) const {
  pollfd waiting{fd_, events, 0};
  for (;;) {
    const int64_t left = std::min<int64_t>(left_until(deadline).count(), INT32_MAX);
    const int got = poll(&waiting, 1, static_cast<int>(left));
    if (got > 0) return true;
    if (got == 0 || errno != EINTR) return false;
  }
}

bool Socket::send_frame(std::string_view bytes, Deadline deadline) {
  std::string frame = WireWriter().text(bytes).take();
  for (size_t done = 0; done < frame.size();) {
    const ssize_t sent = ::send(fd_, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
    } else if (errno != EINTR && ((errno != EAGAIN && errno != EWOULDBLOCK) || !ready(POLLOUT, deadline))) {
      return false;
    }
  }
  return true;
}

bool Socket::receive(char* data, uint64_t size, Deadline deadline) {
  while (size > 0) {
    const ssize_t got = ::recv(fd_, data, size, 0);
    if (got == 0) return false;
    if (got > 0) {
      data += got;
      size -= static_cast<uint64_t>(got);
    } else if (errno != EINTR && ((errno != EAGAIN && errno != EWOULDBLOCK) || !ready(POLLIN, deadline))) {
      return false;
    }
  }
  return true;
}

std::optional<std::string> Socket::receive_frame(Deadline deadline) {
  std::string bytes(8, '\0');
  if (!receive(bytes.data(), bytes.size(), deadline)) return std::nullopt;
  const uint64_t size = WireReader(bytes).number();
  if (size > kMostFrame) return std::nullopt;
  bytes.resize(size);
  if (!receive(bytes.data(), size, deadline)) return std::nullopt;
  return bytes;
}

}  // namespace fsdpctl
