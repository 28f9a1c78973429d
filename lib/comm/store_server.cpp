#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <set>
#include <thread>
#include <utility>

#include "lib/comm/store_protocol.h"
#include "lib/comm/tcp_store.h"
#include "lib/comm/wire.h"

namespace fsdpctl {
namespace {

std::string answer(Answer what, std::string_view bytes = {}) {
  return WireWriter().number(static_cast<uint64_t>(what)).text(bytes).take();
}

std::string failed(const Finding& finding) { return answer(Answer::failed, WireWriter().finding(finding).take()); }

// A connection. At most one request is under way in it.
struct Client {
  Socket socket;
  std::string in, out;
  bool greeted = false;
  int principal_of = -1;                 // the rank whose life this connection stands for
  bool waiting = false;                  // for `key`, or for a failure where `key` is empty
  std::string key;
  Deadline deadline;
  bool closed = false;
};

}  // namespace

// One thread, all connections: what a request does to the map is as quick as finding out that it came.
class StoreServer::Loop {
 public:
  Loop(const std::string& address, uint16_t port, int world_size, std::string run_id)
      : listener_(Socket::listen(address, port)),
        port_(listener_.port()),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        world_size_(world_size),
        run_id_(std::move(run_id)),
        thread_([this] { run(); }) {}

  ~Loop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake();
    thread_.join();
  }

  uint16_t port() const { return port_; }

  Finding fail(const Finding& finding) {
    const Finding kept = values_.fail(finding);
    wake();
    return kept;
  }
  std::optional<Finding> failure() { return values_.failure(Milliseconds(0)); }

  bool wait_until_all_left(Milliseconds patience) {
    std::unique_lock lock(mutex_);
    return left_.wait_for(lock, patience, [this] { return present_.empty(); });
  }

 private:
  void wake() {
    const uint64_t one = 1;
    if (write(wake_.fd(), &one, sizeof one) < 0) return;   // full: it is awake already
  }

  void run() {
    while (!stopped()) {
      std::vector<pollfd> waiting{{listener_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
      for (const Client& client : clients_) {
        waiting.push_back({client.socket.fd(), static_cast<short>(client.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      }
      poll(waiting.data(), waiting.size(), patience());
      uint64_t ignored;
      if (read(wake_.fd(), &ignored, sizeof ignored) < 0 && errno != EAGAIN) return;
      auto client = clients_.begin();
      for (size_t i = 2; i < waiting.size(); ++i, ++client) {
        if (waiting[i].revents & (POLLIN | POLLHUP | POLLERR)) receive(*client);
      }
      if (waiting[0].revents) accept_all();
      answer_waiting();
      for (Client& one : clients_) send(one);
      clients_.remove_if([this](const Client& one) { return one.closed && (forget(one), true); });
    }
  }

  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stop_;
  }

  int patience() const {
    Milliseconds least(60'000);
    for (const Client& client : clients_) {
      if (client.waiting) least = std::min(least, left_until(client.deadline));
    }
    return static_cast<int>(least.count());
  }

  void accept_all() {
    for (;;) {
      Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) return;
      socket.notice_dead_machines();
      clients_.emplace_back().socket = std::move(socket);
    }
  }

  void receive(Client& client) {
    char buffer[65536];
    for (;;) {
      const ssize_t got = recv(client.socket.fd(), buffer, sizeof buffer, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (got <= 0) {
        client.closed = true;
        break;
      }
      client.in.append(buffer, static_cast<size_t>(got));
    }
    try {
      while (client.in.size() >= 8) {
        const uint64_t size = WireReader(client.in).number();
        if (size > kMostFrame) throw Error(Exit::failed, "no message of ours");
        if (client.in.size() - 8 < size) break;
        const std::string frame = client.in.substr(8, size);
        client.in.erase(0, 8 + size);
        if (client.greeted) {
          handle(client, WireReader(frame));
        } else {
          greet(client, WireReader(frame));
        }
      }
    } catch (const Error&) {   // whoever this is, it is none of our ranks
      client.closed = true;
    }
  }

  void reply(Client& client, const std::string& frame) { client.out += WireWriter().text(frame).take(); }

  void send(Client& client) {
    while (!client.out.empty() && !client.closed) {
      const ssize_t sent = ::send(client.socket.fd(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (sent < 0) client.closed = true;
      if (sent > 0) client.out.erase(0, static_cast<size_t>(sent));
    }
  }

  void greet(Client& client, WireReader read) {
    if (read.text() != kGreeting) throw Error(Exit::failed, "no message of ours");
    const std::string run_id = read.text();
    const int rank = static_cast<int>(read.number()), world_size = static_cast<int>(read.number());
    const bool principal = read.number() != 0;
    std::string why;
    if (run_id != run_id_) {
      why = fmt::format("the store serves run '{}', this is run '{}'", run_id_, run_id);
    } else if (world_size != world_size_ || rank < 0 || rank >= world_size) {
      why = fmt::format("the store serves {} ranks, this is rank {} of {}", world_size_, rank, world_size);
    } else if (principal && !come(rank)) {
      why = fmt::format("there is a rank {} already", rank);
    }
    reply(client, answer(why.empty() ? Answer::done : Answer::refused, why));
    client.greeted = why.empty();
    if (principal && client.greeted) client.principal_of = rank;
  }

  bool come(int rank) {
    const std::lock_guard lock(mutex_);
    return present_.insert(rank).second;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex_);
    present_.erase(rank);
    left_.notify_all();
  }

  // A principal connection that ends without goodbye.
  void forget(const Client& client) {
    if (client.principal_of < 0) return;
    Finding finding = error(Exit::failed, "a rank is gone");
    finding.found_only("its connection to the store ended without a goodbye");
    finding.where.rank = client.principal_of;
    values_.fail(finding);
    leave(client.principal_of);
    wake();
  }

  void handle(Client& client, WireReader read) {
    const auto what = static_cast<Request>(read.number());
    const std::string key = read.text();
    switch (what) {
      case Request::set:
        values_.set(key, read.text());
        return reply(client, answer(Answer::done));
      case Request::set_once: return reply(client, answer(Answer::done, values_.set_once(key, read.text())));
      case Request::add: {
        const int64_t sum = values_.add(key, static_cast<int64_t>(read.number()));
        return reply(client, answer(Answer::done, WireWriter().number(static_cast<uint64_t>(sum)).take()));
      }
      case Request::erase:
        values_.erase(key);
        return reply(client, answer(Answer::done));
      case Request::fail: return reply(client, failed(values_.fail(read.finding())));
      case Request::get:
      case Request::failure:
        client.waiting = true;
        client.key = what == Request::get ? key : std::string();
        client.deadline = after(Milliseconds(static_cast<int64_t>(std::min<uint64_t>(read.number(), INT32_MAX))));
        return;
      case Request::goodbye:
        if (client.principal_of >= 0) leave(std::exchange(client.principal_of, -1));
        return reply(client, answer(Answer::done));
    }
    throw Error(Exit::failed, "no message of ours");
  }

  void answer_waiting() {
    const std::optional<Finding> failure = values_.failure(Milliseconds(0));
    for (Client& client : clients_) {
      if (!client.waiting) continue;
      std::optional<std::string> value;
      if (!client.key.empty()) value = values_.find(client.key);
      if (value) {
        reply(client, answer(Answer::done, *value));
      } else if (failure) {
        reply(client, failed(*failure));
      } else if (left_until(client.deadline).count() == 0) {
        reply(client, answer(Answer::nothing_in_time));
      } else {
        continue;
      }
      client.waiting = false;
    }
  }

  Socket listener_;
  const uint16_t port_;
  Socket wake_;             // an eventfd
  const int world_size_;
  const std::string run_id_;
  LocalStore values_;
  std::list<Client> clients_;   // of the thread
  std::mutex mutex_;
  std::condition_variable left_;
  std::set<int> present_;
  bool stop_ = false;
  std::thread thread_;      // last: it uses all of the above
};

StoreServer::StoreServer(const std::string& address, uint16_t port, int world_size, std::string run_id)
    : loop_(std::make_unique<Loop>(address, port, world_size, std::move(run_id))) {}
StoreServer::~StoreServer() = default;
uint16_t StoreServer::port() const { return loop_->port(); }
Finding StoreServer::fail(const Finding& finding) { return loop_->fail(finding); }
std::optional<Finding> StoreServer::failure() { return loop_->failure(); }
bool StoreServer::wait_until_all_left(Milliseconds patience) { return loop_->wait_until_all_left(patience); }

}  // namespace fsdpctl
