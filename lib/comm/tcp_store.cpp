// The client's half; the server's is store_server.cpp.
#include "lib/comm/tcp_store.h"

#include <fmt/format.h>

#include <utility>

#include "lib/comm/store_protocol.h"
#include "lib/comm/wire.h"

namespace fsdpctl {
namespace {

WireWriter request(Request what, const std::string& key) {
  WireWriter writer;
  writer.number(static_cast<uint64_t>(what)).text(key);
  return writer;
}

}  // namespace

struct TcpStore::Reply {
  Answer answer;
  std::string bytes;
};

TcpStore::TcpStore(StoreClientOptions options)
    : options_(std::move(options)), principal_(connect(true, after(options_.connect))) {}

TcpStore::~TcpStore() = default;

void TcpStore::leave() {
  const Deadline deadline = after(Milliseconds(1000));
  if (principal_.send_frame(request(Request::goodbye, "").take(), deadline)) principal_.receive_frame(deadline);
}

void TcpStore::lost(std::string found) const {
  Finding finding = error(Exit::failed, options_.served_by < 0 ? "the launcher is gone" : "a rank is gone");
  finding.at(fmt::format("{}:{}", options_.address, options_.port)).found_only(std::move(found));
  finding.where.rank = options_.served_by;
  throw Error(std::move(finding));
}

Socket TcpStore::connect(bool principal, Deadline deadline) const {
  Socket socket = Socket::connect(options_.address, options_.port, deadline);
  WireWriter greeting;
  greeting.text(kGreeting).text(options_.run_id).number(static_cast<uint64_t>(options_.rank));
  greeting.number(static_cast<uint64_t>(options_.world_size)).number(principal);
  const std::string place = fmt::format("{}:{}", options_.address, options_.port);
  std::optional<std::string> answer;
  if (socket.send_frame(greeting.take(), deadline)) answer = socket.receive_frame(deadline);
  // An answer of ours is `done` and an empty text, or a refusal with its reason.
  if (!answer || answer->size() < 16 || WireReader(*answer).number() > static_cast<uint64_t>(Answer::refused)) {
    throw Error(Exit::failed, "no store of ours answers at this address")
        .at(place)
        .found_only(answer ? "another program's answer" : "no answer")
        .try_("export MASTER_PORT=<another port>, the same on all ranks");
  }
  WireReader read(*answer);
  if (static_cast<Answer>(read.number()) == Answer::refused) {
    throw Error(Exit::failed, "the store turned this rank away").at(place).found_only(read.text());
  }
  return socket;
}

TcpStore::Reply TcpStore::call(const std::string& request, Milliseconds wait) {
  const Deadline deadline = after(wait + options_.reply);
  Socket socket;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      socket = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!socket) {
    try {
      socket = connect(false, after(options_.reply));
    } catch (const Error& e) {
      lost(e.finding().found);
    }
  }
  std::optional<std::string> answer;
  if (socket.send_frame(request, deadline)) answer = socket.receive_frame(deadline);
  if (!answer) lost(left_until(deadline).count() == 0 ? "no answer in time" : "connection closed");
  WireReader read(*answer);
  Reply reply{static_cast<Answer>(read.number()), read.text()};
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(socket));
  return reply;
}

void TcpStore::set(const std::string& key, const std::string& value) {
  call(request(Request::set, key).text(value).take(), Milliseconds(0));
}

std::string TcpStore::set_once(const std::string& key, const std::string& value) {
  return call(request(Request::set_once, key).text(value).take(), Milliseconds(0)).bytes;
}

int64_t TcpStore::add(const std::string& key, int64_t delta) {
  const Reply reply = call(request(Request::add, key).number(static_cast<uint64_t>(delta)).take(), Milliseconds(0));
  return static_cast<int64_t>(WireReader(reply.bytes).number());
}

std::string TcpStore::get(const std::string& key, Milliseconds timeout) {
  Reply reply = call(request(Request::get, key).number(static_cast<uint64_t>(timeout.count())).take(), timeout);
  if (reply.answer == Answer::failed) throw Error(WireReader(reply.bytes).finding());
  if (reply.answer != Answer::done) throw key_timed_out(key, timeout);
  return std::move(reply.bytes);
}

void TcpStore::erase(const std::string& key) { call(request(Request::erase, key).take(), Milliseconds(0)); }

Finding TcpStore::fail(const Finding& finding) {
  return WireReader(call(request(Request::fail, "").finding(finding).take(), Milliseconds(0)).bytes).finding();
}

std::optional<Finding> TcpStore::failure(Milliseconds wait) {
  const Reply reply = call(request(Request::failure, "").number(static_cast<uint64_t>(wait.count())).take(), wait);
  if (reply.answer != Answer::failed) return std::nullopt;
  return WireReader(reply.bytes).finding();
}

}  // namespace fsdpctl
