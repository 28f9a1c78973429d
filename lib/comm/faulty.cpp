#include "lib/comm/faulty.h"

#include <charconv>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include "lib/base/finding.h"

namespace fsdpctl {
namespace {

class Dropped : public Message {
 public:
  Outcome wait(Deadline) override { return {}; }
};

class Faulty : public Transport {
 public:
  Faulty(std::unique_ptr<Transport> transport, Fault fault) : transport_(std::move(transport)), fault_(std::move(fault)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  std::unique_ptr<Message> send(int to, uint32_t tag, std::span<const std::byte> bytes) override {
    if (sent_++ == fault_.at) {
      switch (fault_.kind) {
        case Fault::delay: std::this_thread::sleep_for(fault_.time); break;
        case Fault::drop: return std::make_unique<Dropped>();
        case Fault::die: die();
      }
    }
    return transport_->send(to, tag, bytes);
  }
  std::unique_ptr<Message> receive(int from, uint32_t tag, std::span<std::byte> bytes) override {
    return transport_->receive(from, tag, bytes);
  }
  void close() override { transport_->close(); }

 private:
  void die() {
    try {
      fault_.death();
    } catch (...) {
      transport_->close();
      throw;
    }
  }

  const std::unique_ptr<Transport> transport_;
  const Fault fault_;
  uint64_t sent_ = 0;
};

// The part of `text` before the next colon, which is taken off.
std::string_view next_part(std::string_view& text) {
  const size_t colon = text.find(':');
  const std::string_view part = text.substr(0, colon);
  text.remove_prefix(colon == text.npos ? text.size() : colon + 1);
  return part;
}

}  // namespace

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> transport, Fault fault) {
  return std::make_unique<Faulty>(std::move(transport), std::move(fault));
}

std::optional<Fault> parse_fault(std::string_view text, int rank) {
  const auto refuse = [whole = std::string(text)] {
    throw Error(Exit::usage, "fault is not understood")
        .key("FSDPCTL_COMM_FAULT")
        .saw("RANK:MESSAGE:kill, stop, drop or delay=MS", whole);
  };
  const auto number = [&](std::string_view part) {
    uint64_t value = 0;
    const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (code != std::errc() || end != part.data() + part.size()) refuse();
    return value;
  };
  const uint64_t whose = number(next_part(text));
  Fault fault;
  fault.at = number(next_part(text));
  if (text == "kill") {
    fault.death = [] { std::raise(SIGKILL); };
  } else if (text == "stop") {
    fault.death = [] { std::raise(SIGSTOP); };
  } else if (text == "drop") {
    fault.kind = Fault::drop;
  } else if (text.starts_with("delay=")) {
    fault.kind = Fault::delay;
    fault.time = Milliseconds(static_cast<int64_t>(number(text.substr(6))));
  } else {
    refuse();
  }
  return whose == static_cast<uint64_t>(rank) ? std::optional(fault) : std::nullopt;
}

}  // namespace fsdpctl
